//! How rates change with what is queued, with the workers, and with the partitions.

use std::time::{Duration, Instant};

use crate::arguments::partitions;
use crate::error::Result;
use crate::figures::Figures;
use crate::open::Choice;
use crate::run::Run;
use crate::work::{drain, per_second, submit_in_batches};

/// Unless said otherwise.
const WORKERS: [usize; 3] = [1, 16, 256];
const PARTITIONS: [u32; 2] = [16, 256];
/// A rate is of so many tasks and so much time at least; a slow store has at most this long.
const TASKS_MIN: usize = 2_000;
const TIME_MIN: Duration = Duration::from_secs(1);
const TIME_MAX: Duration = Duration::from_secs(2);
/// The queue is filled in calls of so many, a few at once.
const BATCH: usize = 500;
const CALLERS: usize = 4;

/// One figure of the matrix.
struct Cell {
    partitions: u64,
    queued: usize,
    workers: usize,
    rate: f64,
}

/// Claims and completions a second for every combination, and how each compares with the smallest of its series.
pub(crate) async fn growth(run: &Run<'_>) -> Result<()> {
    let mut workers = or(&run.arguments.workers, &WORKERS);
    let mut depths = run.arguments.queued.clone();
    // From small to large: the queue only has to be filled up, and the first of a series is its smallest.
    workers.sort_unstable();
    depths.sort_unstable();
    let counts: Vec<Option<u32>> = match run.store {
        Choice::New(_) => or(&run.arguments.partitions, &PARTITIONS).into_iter().map(Some).collect(),
        // A store that is there has as many as it has.
        Choice::At(..) => vec![run.arguments.partitions.first().copied()],
    };
    // So many are taken between two fillings, for every length alike: the shortest queue is never emptied.
    let share = (depths.first().copied().unwrap_or(0) / 2).clamp(1, TASKS_MIN);
    let mut cells: Vec<Cell> = Vec::new();
    for count in counts {
        let subject = run.start_with(count.map(partitions)).await?;
        let client = &subject.client;
        let partitions = u64::from(client.partition_config().flow);
        let mut waiting = 0;
        for &queued in &depths {
            for &workers in &workers {
                let (mut done, mut took) = (0, Duration::ZERO);
                while took < TIME_MAX && (done < TASKS_MIN || took < TIME_MIN) {
                    run.progress(&format!("{partitions} partitions, {workers} workers: queueing up to {queued}"));
                    submit_in_batches(client, queued.saturating_sub(waiting), BATCH, CALLERS).await?;
                    waiting = waiting.max(queued);
                    run.progress(&format!("{partitions} partitions, {workers} workers: taking {share} of {queued}"));
                    let began = Instant::now();
                    drain(client, share, workers).await?;
                    took += began.elapsed();
                    done += share;
                    waiting -= share;
                }
                let cell = Cell { partitions, queued, workers, rate: per_second(done, took) };
                run.report(figures(&cell, &cells))?;
                cells.push(cell);
            }
        }
        subject.close().await?;
    }
    Ok(())
}

fn or<T: Copy>(given: &[T], default: &[T]) -> Vec<T> {
    if given.is_empty() { default.to_vec() } else { given.to_vec() }
}

fn figures(cell: &Cell, before: &[Cell]) -> Figures {
    // The first with the same other two is the smallest of the series; a cell without one begins it.
    let ratio = |same: &dyn Fn(&Cell) -> bool| {
        let first = before.iter().find(|other| same(other)).map_or(cell.rate, |first| first.rate);
        cell.rate / first
    };
    Figures::new()
        .with("partitions", cell.partitions)
        .with("queued", cell.queued)
        .with("workers", cell.workers)
        .measured("per_s", cell.rate)
        .measured("of_fewest_queued", ratio(&|o| o.partitions == cell.partitions && o.workers == cell.workers))
        .measured("of_fewest_workers", ratio(&|o| o.partitions == cell.partitions && o.queued == cell.queued))
        .measured("of_fewest_partitions", ratio(&|o| o.queued == cell.queued && o.workers == cell.workers))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::join;

    #[test]
    fn a_rate_is_compared_with_the_first_of_each_series_it_is_in() {
        let cell = |partitions, queued, workers, rate| Cell { partitions, queued, workers, rate };
        let before = [cell(16, 10, 1, 100.0), cell(16, 10, 16, 800.0), cell(16, 99, 1, 50.0), cell(256, 99, 1, 25.0)];
        let line = join(vec![figures(&cell(256, 99, 16, 400.0), &before)]).remove(0).json();
        assert_eq!(line["of_fewest_queued"], json!(1.0), "none with 256 partitions and 16 workers came before");
        assert_eq!(line["of_fewest_workers"], json!(16.0));
        let line = join(vec![figures(&cell(16, 99, 16, 400.0), &before)]).remove(0).json();
        assert_eq!((&line["of_fewest_queued"], &line["of_fewest_workers"]), (&json!(0.5), &json!(8.0)));
    }
}
