//! Signs of life on standard error while something takes long. Nothing is drawn where standard error is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// How often it moves.
const TICK: Duration = Duration::from_millis(120);

/// A spinner with a message; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Spinner(ProgressBar);

impl Spinner {
    pub(crate) fn start(out: &Output, message: impl Into<String>) -> Self {
        let bar = ProgressBar::with_draw_target(None, target(out)).with_message(message.into());
        bar.set_style(style("{spinner} {msg} {elapsed}"));
        bar.enable_steady_tick(TICK);
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar that fills; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn start(out: &Output, total: usize, message: impl Into<String>) -> Self {
        let total = u64::try_from(total).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(total), target(out)).with_message(message.into());
        bar.set_style(style("{spinner} {msg} {bar:30} {pos}/{len} {elapsed}"));
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    pub(crate) fn advance(&self, steps: usize) {
        self.0.inc(u64::try_from(steps).unwrap_or(u64::MAX));
    }

    /// Shows how far the work has come, with a message.
    pub(crate) fn show(&self, position: u32, message: String) {
        self.0.set_position(position.into());
        self.0.set_message(message);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn target(out: &Output) -> ProgressDrawTarget {
    if out.is_json() { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this file are well formed")
}
