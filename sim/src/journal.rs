//! A function with a journal, as a worker runs it: what an earlier lease recorded is not done again, a step is recorded
//! when it is done, and between two steps it may park or die.

use std::sync::Arc;

use ff_core::Code;
use ff_core::journal::{StepState, StepView};
use ff_core::lease::LeaseEnd;
use ff_core::op::view::Task;
use ff_core::op::{ContinueAsNew, ListSteps, Park, RecordSteps, park};
use serde_json::{Value, json};

use crate::checker::RecordedStep;
use crate::invariant::Invariant;
use crate::worker::Holder;
use crate::world::World;

/// The steps of every function; it may wait before the second.
const STEPS: [&str; 2] = ["fetch", "store"];
/// A step whose body must not run twice, which some functions have before the others.
pub(crate) const ONCE: &str = "pay";
/// The entries that a function waits with.
const SLEEP: &str = "nap";
const SIGNAL: &str = "decision";
const CHILD: &str = "helper";
/// A result that does not fit into the journal itself has this many bytes.
const LARGE: usize = 5_000;

/// The lease or its absence when a function is done with its journal.
pub(crate) enum Left {
    /// Its lease.
    Lease,
    /// Nothing: it parked, or died.
    Nothing,
}

/// A function while it runs under one lease.
struct Function<'a> {
    holder: &'a Holder,
    generation: u32,
    known: Vec<StepView>,
    next: u64,
}

/// Runs a function for as long as nothing stops it.
pub(crate) async fn run(holder: &Holder, task: &Task) -> Left {
    let journal = task.journal.clone().unwrap_or_default();
    if !journal.complete && !journal.entries.is_empty() {
        return Left::Lease;
    }
    let mut function =
        Function { holder, generation: task.generation, next: journal.next_number.max(1), known: journal.entries };
    if holder.world.chance(150) && !function.ended(ONCE) {
        match function.once().await {
            Parking::GoesOn => {}
            Parking::Parked => return Left::Nothing,
            Parking::Refused => return Left::Lease,
        }
    }
    if !function.known.is_empty() && holder.world.chance(400) {
        return function.continue_as_new().await;
    }
    for name in STEPS {
        if name == STEPS[1] && holder.world.chance(500) {
            match function.park().await {
                Parking::GoesOn => {}
                Parking::Parked => return Left::Nothing,
                Parking::Refused => return Left::Lease,
            }
        }
        if !function.ended(name) && !function.step(name).await {
            return Left::Lease;
        }
        if holder.world.chance(60) {
            holder.world.note(format_args!("the holder of {} dies after {name}", holder.id));
            return Left::Nothing;
        }
    }
    Left::Lease
}

/// The outcome of a wait, or of a step that must not happen twice.
enum Parking {
    GoesOn,
    Parked,
    Refused,
}

impl Function<'_> {
    fn last(&self, name: &str) -> Option<&StepView> {
        self.known.iter().rev().find(|entry| entry.name == name)
    }

    fn ended(&self, name: &str) -> bool {
        self.last(name).is_some_and(|entry| entry.state.is_ended())
    }

    /// Runs a body that must not run twice. One that began under another lease is asked about, and runs only when a
    /// person said that it did not happen.
    async fn once(&mut self) -> Parking {
        let holder = self.holder;
        let world = &holder.world;
        let generation = world.checker().generation;
        if self.last(ONCE).is_some_and(|entry| entry.state == StepState::Begun) {
            let question = json!({ "step": { "name": ONCE }, "reason": "in_doubt" });
            let args = holder.args(json!({ "first_number": self.next, "questions": [question] }));
            return match world.insist::<Park>(&args).await {
                Some(Ok(_)) => {
                    holder.acknowledge(generation, LeaseEnd::Parked);
                    Parking::Parked
                }
                Some(Err(error)) => {
                    self.refused(error.code, generation);
                    Parking::Refused
                }
                None => Parking::Refused,
            };
        }
        let begun = json!({ "first_number": self.next, "entries": [{ "name": ONCE, "state": "begun" }] });
        match world.insist::<RecordSteps>(&holder.args(begun)).await {
            Some(Ok(outcome)) => self.next = outcome.next_number,
            Some(Err(error)) => {
                self.refused(error.code, generation);
                return Parking::Refused;
            }
            None => return Parking::Refused,
        }
        if world.chance(400) {
            world.note(format_args!("the holder of {} dies inside of {ONCE}", holder.id));
            return Parking::Parked;
        }
        if self.step(ONCE).await { Parking::GoesOn } else { Parking::Refused }
    }

    /// Begins anew with an empty journal.
    async fn continue_as_new(&mut self) -> Left {
        let holder = self.holder;
        let generation = holder.world.checker().generation;
        let args = holder.args(json!({ "input": holder.world.between(0, 9) }));
        match holder.world.insist::<ContinueAsNew>(&args).await {
            Some(Ok(_)) => {
                holder.acknowledge(generation, LeaseEnd::Continued);
                Left::Nothing
            }
            _ => Left::Lease,
        }
    }

    /// Does a step and records it; false when it could not be recorded, or it is not known whether it was.
    async fn step(&mut self, name: &str) -> bool {
        let holder = self.holder;
        let world = &holder.world;
        let padding = if world.chance(100) { "x".repeat(LARGE) } else { String::new() };
        let result = json!(format!("{name} under {} of epoch {}{padding}", holder.fence.lease_id, holder.fence.epoch));
        let mut entries = Vec::new();
        // A step that must not run twice has said that it begins.
        if name != ONCE && world.chance(300) {
            entries.push(json!({ "name": name, "state": "begun" }));
        }
        entries.push(json!({ "name": name, "state": "completed", "result": result }));
        let generation = world.checker().generation;
        let args = holder.args(json!({ "first_number": self.next, "entries": entries }));
        match world.insist::<RecordSteps>(&args).await {
            Some(Ok(outcome)) => {
                let step = RecordedStep {
                    number: outcome.last_number,
                    name: name.to_owned(),
                    epoch: holder.fence.epoch,
                    result: Some(result),
                };
                let expected = self.next + entries.len() as u64;
                let mut checker = world.checker();
                checker.expect(outcome.next_number == expected, Invariant::JournalKept, || {
                    format!("{}: entry {} follows where {expected} does", holder.id, outcome.next_number)
                });
                if checker.generation == generation {
                    checker.acknowledged_step(holder.id, self.generation, step);
                }
                self.next = outcome.next_number;
                true
            }
            Some(Err(error)) => {
                self.refused(error.code, generation);
                false
            }
            None => false,
        }
    }

    /// No other worker writes while the lease holds, so that only a store that forgot has another number for the next
    /// entry.
    fn refused(&self, code: Code, generation: u64) {
        let mut checker = self.holder.world.checker();
        let forgot = checker.generation != generation || generation > 0;
        checker.expect(forgot || code != Code::JournalConflict, Invariant::JournalKept, || {
            format!("{}: entry {} of its holder was refused", self.holder.id, self.next)
        });
    }

    /// Waits for an instant, a signal or a child, whichever comes first, unless an earlier lease did.
    async fn park(&mut self) -> Parking {
        let holder = self.holder;
        let world = &holder.world;
        let mut args = json!({ "first_number": self.next });
        let wanted = world.between(0, 9);
        let instant = |entry: Option<&StepView>| entry.and_then(|entry| entry.next_at);
        if wanted <= 4 && !self.ended(SLEEP) {
            args["sleeps"] = match instant(self.last(SLEEP)) {
                Some(until) => json!([{ "step": { "name": SLEEP }, "until": until }]),
                None => json!([{ "step": { "name": SLEEP }, "sleep_ms": world.between(0, 8_000) }]),
            };
        }
        if (3..=8).contains(&wanted) && !self.ended(SIGNAL) {
            args["waitpoints"] = match instant(self.last(SIGNAL)) {
                Some(at) => json!([{ "step": { "name": SIGNAL }, "timeout_at": at }]),
                None => json!([{ "step": { "name": SIGNAL }, "timeout_ms": world.between(500, 15_000) }]),
            };
        }
        let child = world.desk().children.get(&holder.id).map(|(child, _)| *child);
        if let Some(child) = child.filter(|_| wanted >= 8 && !self.ended(CHILD)) {
            args["children"] = json!([{ "step": { "name": CHILD }, "execution_id": child }]);
        }
        if ["sleeps", "waitpoints", "children"].into_iter().all(|wait| args[wait] == Value::Null) {
            return Parking::GoesOn;
        }
        let generation = world.checker().generation;
        match world.insist::<Park>(&holder.args(args)).await {
            Some(Ok(park::Outcome::Parked { waitpoints, .. })) => {
                for open in waitpoints {
                    holder.announce(open.waitpoint_id, open.token.0);
                }
                holder.acknowledge(generation, LeaseEnd::Parked);
                Parking::Parked
            }
            Some(Ok(park::Outcome::AlreadySatisfied { entries, next_number })) => {
                let mut checker = world.checker();
                if checker.generation == generation {
                    for entry in entries.iter().filter(|entry| entry.state == StepState::Completed) {
                        let step = RecordedStep {
                            number: entry.number,
                            name: entry.name.clone(),
                            epoch: holder.fence.epoch,
                            result: None,
                        };
                        checker.acknowledged_step(holder.id, self.generation, step);
                    }
                }
                self.known.extend(entries);
                self.next = next_number;
                Parking::GoesOn
            }
            Some(Err(error)) => {
                self.refused(error.code, generation);
                Parking::Refused
            }
            Some(Ok(park::Outcome::Unknown(_))) | None => Parking::Refused,
        }
    }
}

/// A reader that reads a journal page by page.
pub(crate) async fn read(world: &Arc<World>, args: &Value) {
    let mut args = args.clone();
    args["limit"] = json!(world.between(1, 20));
    let (generation, known) = {
        let checker = world.checker();
        (checker.generation, checker.acknowledged_journals())
    };
    let mut seen: Vec<StepView> = Vec::new();
    let mut journal = None;
    loop {
        let Some(Ok(page)) = world.insist::<ListSteps>(&args).await else { return };
        // The pages are of one journal, whatever becomes of the execution meanwhile.
        journal.get_or_insert(page.generation);
        args["generation"] = json!(page.generation);
        seen.extend(page.items);
        match page.next_after {
            Some(after) => args["after"] = json!(after),
            None => break,
        }
    }
    let mut checker = world.checker();
    if let (Some(journal), true) = (journal, checker.generation == generation) {
        checker.saw_journal(&args, journal, &seen, &known);
    }
}
