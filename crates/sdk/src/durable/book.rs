//! The journal as one call of a handler knows it: the existing entries, those being recorded, and the waits of its
//! branches.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use ff_core::journal::{RunNotes, StepEntry, StepIdentity, StepKind, StepState, StepView};
use ff_core::op::park::Outcome;
use ff_core::op::{
    ChildWait, ListSteps, RecordSteps, SignalWait, SleepWait, StepQuestion, list_steps, park, record_steps,
};
use ff_core::suspension::SuspendReason;
use ff_core::{Code, ExecutionId, JsonText};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::watcher::{Moment, Watcher};
use crate::error::{Result, SdkError};
use crate::task::{ClaimedTask, shorten};
use crate::task_error::{TaskError, category};

/// The journal of the task in hand.
#[derive(Debug)]
pub(crate) struct Steps {
    task: Arc<ClaimedTask>,
    book: Mutex<Book>,
    /// Held while entries are sent, so that their numbers follow each other.
    sending: tokio::sync::Mutex<()>,
    watcher: Option<Arc<dyn Watcher>>,
}

#[derive(Debug, Default)]
struct Book {
    /// The last record of each entry.
    entries: BTreeMap<StepIdentity, StepView>,
    next_number: u64,
    /// The rest of a journal that was too large for the claim has been read.
    complete: bool,
    /// Calls so far of each name without a key.
    counts: BTreeMap<String, u32>,
    /// Entries this run has asked for.
    visited: BTreeSet<StepIdentity>,
    /// Completed entries, those of this run included, with the entry that each of them undoes.
    completed: BTreeMap<StepIdentity, Completed>,
    /// Entries with a key that were kept although this run gave them another input.
    changed: BTreeSet<StepIdentity>,
    /// Names without a key whose last call has not ended.
    unfinished: BTreeSet<String>,
    /// Entries on their way, oldest first, and the branches that wait for their numbers. An entry stays until it is
    /// answered: if the branch that sends it is dropped meanwhile, the next one sends it again under the same number.
    queue: VecDeque<(StepEntry, oneshot::Sender<Numbered>)>,
    /// The number of bodies that run and entries that are being sent.
    busy: usize,
    /// Children that branches have spawned and not seen ended.
    children: BTreeSet<ExecutionId>,
    waits: BTreeMap<StepIdentity, Waiting>,
    /// A step was taken for a loop: the engine has released the task, and the handler ends.
    released: bool,
}

#[derive(Debug, Clone)]
struct Completed {
    number: u64,
    compensates: Option<StepIdentity>,
}

/// The number that an entry got, or why it could not be recorded, for each branch that asked.
type Numbered = Result<u64, Arc<SdkError>>;

/// A wait of a branch of the handler.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) what: WaitKind,
    pub(super) waker: Waker,
}

/// The kind of a wait.
#[derive(Debug, Clone)]
pub(super) enum WaitKind {
    Sleep { sleep_ms: i64, provider: Option<String> },
    Signal { timeout_ms: Option<i64> },
    Child { execution_id: ExecutionId },
    Question(Asked),
}

impl WaitKind {
    /// The kind of the entry that the wait ends.
    pub(super) fn kind(&self) -> StepKind {
        match self {
            WaitKind::Sleep { .. } => StepKind::Sleep,
            WaitKind::Signal { .. } => StepKind::Signal,
            WaitKind::Child { .. } => StepKind::Child,
            WaitKind::Question(asked) => asked.kind,
        }
    }
}

/// A question for a person about an entry.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) reason: SuspendReason,
    pub(super) detail: String,
    pub(super) kind: StepKind,
    pub(super) input_hash: Option<String>,
}

/// Counts something that must end before the handler may be parked.
pub(super) struct Busy<'s>(&'s Steps);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.book().busy -= 1;
    }
}

/// A child of a branch that has not seen its end.
pub(super) struct OpenChild<'s> {
    steps: &'s Steps,
    child: ExecutionId,
}

impl Drop for OpenChild<'_> {
    fn drop(&mut self) {
        self.steps.book().children.remove(&self.child);
    }
}

/// The identity of a call of a step. Dropping it ends an unkeyed call.
pub(super) struct Call {
    steps: Arc<Steps>,
    pub(super) identity: StepIdentity,
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.identity.key.is_none() {
            self.steps.book().unfinished.remove(&self.identity.name);
        }
    }
}

impl Steps {
    pub(crate) fn new(task: Arc<ClaimedTask>, watcher: Option<Arc<dyn Watcher>>) -> Arc<Self> {
        let mut book = Book { next_number: 1, complete: true, ..Default::default() };
        if let Some(journal) = task.details().journal.clone() {
            book.next_number = journal.next_number.max(1);
            book.complete = journal.complete;
            journal.entries.into_iter().for_each(|entry| book.note(entry));
        }
        if let Some(entries) = watcher.as_ref().and_then(|watcher| watcher.journal()) {
            entries.into_iter().for_each(|entry| book.note(entry));
        }
        Arc::new(Self { task, book: Mutex::new(book), sending: tokio::sync::Mutex::default(), watcher })
    }

    /// Tells the watcher, if there is one, how far a step has come.
    pub(super) async fn reached(&self, moment: Moment, step: &StepIdentity) -> Result<(), TaskError> {
        match &self.watcher {
            Some(watcher) => watcher.reached(moment, step).await,
            None => Ok(()),
        }
    }

    /// Tells the watcher, if there is one, that a person is asked about a step.
    pub(super) fn asked(&self, step: &StepIdentity, why: &str) {
        if let Some(watcher) = &self.watcher {
            watcher.asked(step, why);
        }
    }

    /// Whether the deployment has a test clock, which only a test moves, so that a wait must not be slept by the
    /// process's clock.
    pub(super) fn on_test_clock(&self) -> bool {
        self.task.client().deployment().test_clock
    }

    pub(super) fn task(&self) -> &Arc<ClaimedTask> {
        &self.task
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Counts a call when it is made and not when it is first polled, so that calls are counted in the order of the
    /// code.
    pub(super) fn call(self: &Arc<Self>, name: &str, key: Option<&str>) -> Result<Call, TaskError> {
        let named = StepIdentity { name: name.to_owned(), key: key.map(str::to_owned), occurrence: None };
        named.validate().map_err(TaskError::refused)?;
        let mut book = self.book();
        let occurrence = match key {
            Some(_) => None,
            None if !book.unfinished.insert(name.to_owned()) => {
                let reason = format!("another call of step {name:?} has not ended; give each a key");
                return Err(TaskError::new(reason).category("step_key_required"));
            }
            None => {
                let count = book.counts.entry(name.to_owned()).or_default();
                *count += 1;
                Some(*count - 1)
            }
        };
        let identity = StepIdentity { occurrence, ..named };
        if !book.visited.insert(identity.clone()) {
            let reason = format!("step {} is called twice in one run", identity.label());
            return Err(TaskError::new(reason).category("duplicate_step"));
        }
        drop(book);
        if let Some(watcher) = &self.watcher {
            watcher.called(&identity);
        }
        Ok(Call { steps: self.clone(), identity })
    }

    /// The entry of the journal. The rest of a large journal is read when it is first needed.
    pub(super) async fn find(&self, identity: &StepIdentity) -> Result<Option<StepView>, TaskError> {
        let complete = self.book().complete;
        if !complete {
            let _busy = self.busy();
            self.read_rest().await.map_err(|error| TaskError::of_record(&error))?;
        }
        Ok(self.known(identity))
    }

    /// The entry, if it is in memory.
    pub(super) fn known(&self, identity: &StepIdentity) -> Option<StepView> {
        self.book().entries.get(identity).cloned()
    }

    async fn read_rest(&self) -> Result<()> {
        let _one_reader = self.sending.lock().await;
        loop {
            let after = {
                let book = self.book();
                if book.complete {
                    return Ok(());
                }
                book.entries.values().map(|entry| entry.number).max().unwrap_or(0)
            };
            let execution_id = self.task.execution_id();
            let args = list_steps::Args { execution_id, generation: None, after: Some(after), limit: Some(1_000) };
            let page = self.task.call::<ListSteps>(args).await?;
            let mut book = self.book();
            book.complete = page.next_after.is_none();
            page.items.into_iter().for_each(|entry| book.note(entry));
        }
    }

    /// Marks that something runs which a park would interrupt.
    pub(super) fn busy(&self) -> Busy<'_> {
        self.book().busy += 1;
        Busy(self)
    }

    /// Stores an entry and returns its number. Entries of parallel steps that wait together share a call.
    pub(super) async fn record(&self, entry: StepEntry) -> Result<u64, TaskError> {
        // An invalid entry is refused here, so that it does not fail the other entries that would share its call.
        entry.validate().map_err(|error| TaskError::new(error.to_string()).category(category::REFUSED))?;
        let _busy = self.busy();
        let (stored, mut answer) = oneshot::channel();
        self.book().queue.push_back((entry, stored));
        let _turn = self.sending.lock().await;
        loop {
            match answer.try_recv() {
                // The task was released, so nothing that the handler does now would count. It is dropped while it waits
                // here.
                Ok(_) if self.is_released() => return std::future::pending().await,
                Ok(answer) => return answer.map_err(|error| TaskError::of_record(&error)),
                Err(TryRecvError::Empty) => drop(self.send_queue().await),
                Err(TryRecvError::Closed) => return Err(TaskError::new("an entry of the journal was not answered")),
            }
        }
    }

    /// Sends the oldest entries. The caller holds the turn.
    async fn send_queue(&self) -> Result<(), Arc<SdkError>> {
        let (entries, first_number) = {
            let book = self.book();
            let oldest = book.queue.iter().take(ff_core::limits::STEPS_PER_RECORD_MAX);
            (oldest.map(|(entry, _)| entry.clone()).collect::<Vec<_>>(), book.next_number)
        };
        let count = entries.len();
        let (execution_id, fence) = (self.task.execution_id(), self.task.fence());
        let args = record_steps::Args { execution_id, fence, first_number, entries };
        let answer = self.task.call::<RecordSteps>(args).await.map_err(Arc::new);
        let mut book = self.book();
        if let Ok(recorded) = &answer {
            book.next_number = recorded.next_number;
            book.released |= recorded.loop_detected;
        }
        let sent: Vec<_> = book.queue.drain(..count).collect();
        for (number, (entry, branch)) in (first_number..).zip(sent) {
            if answer.is_ok() {
                book.note_recorded(number, entry);
            }
            // The branch may be gone.
            let _ = branch.send(answer.as_ref().map(|_| number).map_err(Arc::clone));
        }
        answer.map(drop)
    }

    /// Sends entries that dropped branches have left in the queue.
    async fn send_rest(&self) -> Result<(), Arc<SdkError>> {
        let _turn = self.sending.lock().await;
        loop {
            let empty = self.book().queue.is_empty();
            if empty {
                return Ok(());
            }
            self.send_queue().await?;
        }
    }

    /// Notes that an entry was kept although its input has changed.
    pub(super) fn note_changed(&self, identity: &StepIdentity) {
        self.book().changed.insert(identity.clone());
    }

    /// Findings about the journal of a run that has come to its end.
    pub(crate) fn run_notes(&self) -> Option<RunNotes> {
        let book = self.book();
        let most = ff_core::limits::STEPS_NAMED_MAX;
        let unasked = book.entries.keys().filter(|step| book.complete && !book.visited.contains(*step));
        let notes = RunNotes {
            steps_not_visited: unasked.take(most).cloned().collect(),
            steps_changed: book.changed.iter().take(most).cloned().collect(),
        };
        Some(notes).filter(|notes| *notes != RunNotes::default())
    }

    /// Completed steps that a completed compensation has undone, and these compensations: a retry runs them again.
    pub(crate) fn undone(&self) -> Vec<StepIdentity> {
        let book = self.book();
        let mut undone = BTreeSet::new();
        for (compensation, entry) in &book.completed {
            let Some(step) = &entry.compensates else { continue };
            if book.completed.get(step).is_some_and(|step| step.number < entry.number) {
                undone.extend([step.clone(), compensation.clone()]);
            }
        }
        undone.into_iter().take(ff_core::limits::STEPS_NAMED_MAX).collect()
    }

    /// The number of the next entry, for an ending that records one; `None` when the journal cannot be written.
    pub(crate) async fn number_for_ending(&self) -> Option<u64> {
        self.send_rest().await.ok()?;
        Some(self.book().next_number)
    }

    /// Adds a wait of a branch, which is woken when its entry has ended.
    pub(super) fn wait(&self, identity: &StepIdentity, what: &WaitKind, waker: &Waker) {
        let waiting = Waiting { what: what.clone(), waker: waker.clone() };
        self.book().waits.insert(identity.clone(), waiting);
    }

    /// The children that branches of the function have spawned and not seen ended.
    pub(super) fn open_children(&self) -> BTreeSet<ExecutionId> {
        self.book().children.clone()
    }

    /// A branch spawns a child, which counts as open until the guard is dropped.
    pub(super) fn open_child(&self, child: ExecutionId) -> OpenChild<'_> {
        self.book().children.insert(child);
        OpenChild { steps: self, child }
    }

    /// Records that an entry has this result.
    pub(super) async fn record_result(&self, step: &StepIdentity, result: &impl Serialize) -> Result<(), TaskError> {
        let text = serde_json::to_string(result)
            .map_err(|error| TaskError::new(error.to_string()).category(category::INVALID_RESULT))?;
        self.record(StepEntry { result: Some(JsonText(text)), ..entry(step, StepState::Completed) }).await.map(drop)
    }

    /// Removes the wait of a branch.
    pub(super) fn stop_waiting(&self, identity: &StepIdentity) {
        self.book().waits.remove(identity);
    }

    /// Whether the engine has released the task, so that the handler has nothing more to do.
    pub(super) fn is_released(&self) -> bool {
        self.book().released
    }

    /// Whether every branch of the handler waits, so that nothing is lost when the handler is dropped.
    pub(super) fn may_park(&self) -> bool {
        let book = self.book();
        book.busy == 0 && !book.waits.is_empty()
    }

    /// Gives the task up until the first of the waits is over. Returns whether it did; otherwise one of them is over
    /// already and the handler goes on.
    pub(super) async fn park(&self) -> Result<bool, Arc<SdkError>> {
        self.send_rest().await?;
        let args = {
            let book = self.book();
            let mut args = park::Args {
                execution_id: self.task.execution_id(),
                fence: self.task.fence(),
                entries: Vec::new(),
                first_number: book.next_number,
                sleeps: Vec::new(),
                waitpoints: Vec::new(),
                children: Vec::new(),
                questions: Vec::new(),
            };
            for (step, waiting) in &book.waits {
                // The instant of a wait is fixed the first time.
                let fixed = book.entries.get(step).and_then(|known| known.next_at);
                let step = step.clone();
                match &waiting.what {
                    WaitKind::Sleep { sleep_ms, provider } => {
                        let sleep_ms = fixed.is_none().then_some(*sleep_ms);
                        args.sleeps.push(SleepWait { step, until: fixed, sleep_ms, provider: provider.clone() });
                    }
                    WaitKind::Signal { timeout_ms } => {
                        let timeout_ms = timeout_ms.filter(|_| fixed.is_none());
                        args.waitpoints.push(SignalWait { step, timeout_at: fixed, timeout_ms });
                    }
                    WaitKind::Child { execution_id } => {
                        args.children.push(ChildWait { step, execution_id: *execution_id });
                    }
                    WaitKind::Question(asked) => args.questions.push(StepQuestion {
                        step,
                        reason: asked.reason,
                        detail: Some(shorten(asked.detail.clone())),
                        kind: Some(asked.kind),
                        input_hash: asked.input_hash.clone(),
                    }),
                }
            }
            args
        };
        match self.task.end_with_park(args).await.map_err(Arc::new)? {
            // If a newer server left the lease with the task, the lease runs out, and the function is called again.
            Outcome::Parked { .. } | Outcome::Unknown(_) => Ok(true),
            Outcome::AlreadySatisfied { entries, next_number } => {
                let mut book = self.book();
                book.next_number = next_number;
                entries.into_iter().for_each(|entry| book.note(entry));
                std::mem::take(&mut book.waits).into_values().for_each(|waiting| waiting.waker.wake());
                Ok(false)
            }
        }
    }
}

impl Book {
    fn note(&mut self, entry: StepView) {
        self.note_state(entry.identity(), entry.number, entry.state, entry.compensates.clone());
        self.entries.insert(entry.identity(), entry);
    }

    fn note_recorded(&mut self, number: u64, entry: StepEntry) {
        let identity = StepIdentity { name: entry.name, key: entry.key, occurrence: entry.occurrence };
        self.note_state(identity, number, entry.state, entry.compensates);
    }

    fn note_state(&mut self, identity: StepIdentity, number: u64, state: StepState, compensates: Option<StepIdentity>) {
        match state {
            StepState::Completed => drop(self.completed.insert(identity, Completed { number, compensates })),
            StepState::Begun | StepState::Retrying | StepState::Failed | StepState::Unknown(_) => {
                self.completed.remove(&identity);
            }
        }
    }
}

/// An entry in some state, for recording.
pub(super) fn entry(identity: &StepIdentity, state: StepState) -> StepEntry {
    let StepIdentity { name, key, occurrence } = identity.clone();
    StepEntry { name, key, occurrence, state, ..Default::default() }
}

impl TaskError {
    /// The error of a handler whose entry could not be recorded.
    pub(super) fn of_record(error: &SdkError) -> Self {
        if error.is_lease_lost() {
            return Self::lost();
        }
        match error.code() {
            // Another run has written to the journal, so the function starts over with the present journal.
            Some(Code::JournalConflict) => Self::start_over(),
            Some(Code::JournalFull) => Self::new(error.to_string()).category("journal_full"),
            _ => Self::new(error.to_string()),
        }
    }
}
