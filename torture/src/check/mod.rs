//! The checker: reads a whole history and the state at the end, and judges every rule on both. It knows nothing about the
//! servers, so it can be run again on the files of a campaign.

mod executions;
mod leases;
mod model;
mod sharing;
#[cfg(test)]
pub(crate) mod tests;

use crate::history::History;
use crate::outcome::Outcome;
use crate::score::Score;

use self::model::Model;

/// Judges everything.
pub fn check(history: &History, outcome: &Outcome) -> Score {
    let model = Model::of(history, outcome);
    let mut score = Score::of(history);
    executions::judge(&model, &mut score);
    leases::judge(&model, &mut score);
    sharing::judge(&model, &mut score);
    score
}
