//! `ff rotate-secret`: signs waitpoint tokens with a new secret.

use ff_core::op::parts::Secret;
use flowfabric::op::{RotateWaitpointSecret, rotate_waitpoint_secret};

use crate::failure::Result;
use crate::input::Source;
use crate::session::Session;
use crate::span;

/// The arguments of `ff rotate-secret`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff rotate-secret --kid 2026-11                      with a secret made here
  ff rotate-secret --kid 2026-11 --grace 1h           old tokens are good for an hour
  openssl rand -hex 32 | ff rotate-secret --kid 2026-11 --secret-file -

The secret is never printed. The same kid with the same secret again changes nothing.")]
pub(crate) struct Arguments {
    /// The name of the new secret
    #[arg(long)]
    kid: String,
    /// A file with the new secret in hex, at least 32 bytes, or - for standard input [default: a random one]
    #[arg(long, value_name = "FILE", value_parser = Source::file)]
    secret_file: Option<Source>,
    /// How long the old one verifies [default: 24h]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    grace: Option<i64>,
}

/// Rotates.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let secret = match &arguments.secret_file {
        Some(source) => source.read_text()?.trim().to_owned(),
        None => random_hex(),
    };
    let args = rotate_waitpoint_secret::Args {
        new_kid: arguments.kid,
        new_secret_hex: Secret(secret),
        grace_ms: arguments.grace,
    };
    let answer = session.client.call::<RotateWaitpointSecret>(args).await?;
    session.out.answer(&answer, |_| {
        if !answer.changed {
            return format!("{} signed before; nothing changed", answer.new_kid);
        }
        let previous = answer.previous_kid.as_ref().zip(answer.previous_expires_at);
        let previous = previous.map(|(kid, until)| format!("; {kid} verifies until {}", span::instant(until)));
        format!("{} signs from now on{}", answer.new_kid, previous.unwrap_or_default())
    })
}

/// 64 bytes, of which 488 bits are random.
fn random_hex() -> String {
    (0..4).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect()
}
