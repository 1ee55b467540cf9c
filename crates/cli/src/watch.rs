//! `--watch`: shows something again whenever it has changed.

use std::time::Duration;

use serde::Serialize;

use crate::failure::Result;
use crate::output::Style;
use crate::session::Session;

/// How often to look.
const INTERVAL: Duration = Duration::from_secs(1);
/// Clears the terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// `--watch` for commands that have it.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Watch {
    /// Show it again whenever it changes
    #[arg(long, short)]
    pub(crate) watch: bool,
}

/// A view that `--watch` shows again and again.
pub(crate) trait View {
    /// The answer for programs.
    type Answer: Serialize;

    /// Fetches it.
    async fn fetch(&self, session: &Session) -> Result<Self::Answer>;
    /// The text for people.
    fn text(&self, answer: &Self::Answer, style: Style) -> String;
    /// Whether it will not change any more.
    fn is_final(&self, answer: &Self::Answer) -> bool;
}

/// Shows it once, or until it does not change any more.
pub(crate) async fn show(session: Session, watch: Watch, view: &impl View) -> Result<()> {
    if !watch.watch {
        let answer = view.fetch(&session).await?;
        return session.out.answer(&answer, |style| view.text(&answer, style));
    }
    let session = session.patient().await?;
    let mut shown = String::new();
    loop {
        let answer = view.fetch(&session).await?;
        let text = view.text(&answer, session.out.style());
        if text != shown {
            if session.out.is_terminal() {
                session.out.text(&format!("{CLEAR}{text}"))?;
            } else {
                session.out.line(&answer, |_| if shown.is_empty() { text.clone() } else { format!("\n{text}") })?;
            }
            shown = text;
        }
        if view.is_final(&answer) {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
