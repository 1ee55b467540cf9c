//! The invariants by name. The first twelve are those of the design; the others are rules it states elsewhere.

macro_rules! invariants {
    ($( $(#[doc = $doc:literal])* $variant:ident $name:literal, )*) => {
        /// A rule that always holds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant { $( $(#[doc = $doc])* $variant, )* }

        impl Invariant {
            /// All of them.
            pub const ALL: &'static [Invariant] = &[ $( Invariant::$variant, )* ];

            /// Its name in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $( Invariant::$variant => $name, )* }
            }
        }
    };
}

invariants! {
    /// At most one live lease for an execution; the epoch only grows; an old fence changes nothing; a renewal holds.
    OneLiveLease "one_live_lease",
    /// Every execution that has not ended is where its state says, and ends when nothing hinders it.
    NothingLost "nothing_lost",
    /// A terminal state is reached once, only replay leaves it, and the result is that of the attempt that completed.
    TerminalOnce "terminal_once",
    /// Attempts are numbered without gaps; retries and reclaims are counted and stay within the policy.
    AttemptsNumbered "attempts_numbered",
    /// A child never starts early; a flow ends with its last member; nothing starts in a cancelled flow.
    ChildrenWait "children_wait",
    /// A signal takes effect once for its key; a wrong token changes nothing.
    SignalsOnce "signals_once",
    /// A suspension ends exactly once.
    SuspensionEndsOnce "suspension_ends_once",
    /// Nothing starts on an exhausted budget, outside of a quota's window, or over its cap.
    AdmissionHolds "admission_holds",
    /// Usage with the same key counts once, and counters are the sum of what was acknowledged.
    UsageOnce "usage_once",
    /// Usage without overrun and held amounts never pass a budget's hard limit together, and counters are the sum of
    /// what became of each reservation.
    CeilingHolds "ceiling_holds",
    /// Frames are read in the order appended, none lost, none twice, none after the close.
    FramesInOrder "frames_in_order",
    /// Index entries are those of the documents.
    IndexesAgree "indexes_agree",
    /// An acknowledged change is there.
    AcknowledgedSurvives "acknowledged_survives",
    /// Subscribers get every event of a partition once and in order, or are told of a gap.
    EventsInOrder "events_in_order",
    /// The commit that moves a subscription over an event creates its delivery, and none is created twice.
    EachEventOnce "each_event_once",
    /// A walk through a list shows, once, everything that was there all the time.
    ListsComplete "lists_complete",
    /// A version names one content: what was read under it is what a commit guarded by it replaces.
    VersionsNameOne "versions_name_one",
    /// A command that is repeated with its identity has one effect.
    OneEffect "one_effect",
    /// Nothing that waits for an instant happens before it, by the store's clock.
    TimersKeepTime "timers_keep_time",
    /// In calm, work that may start and a worker that waits for such work meet within a second.
    MetInTime "met_in_time",
    /// In calm, nothing starts while something more urgent waits in its lane.
    PriorityOrder "priority_order",
    /// A claim is answered when its wait is over, and not empty when nothing could be read.
    ClaimsKeepTime "claims_keep_time",
    /// Whatever fails is tried again later, not at once: time passes between the steps of a run.
    NothingSpins "nothing_spins",
    /// A server that is told to stop stops.
    StopsInTime "stops_in_time",
    /// Fields that a later version wrote are there after an earlier one wrote.
    UnknownKept "unknown_kept",
    /// When nothing runs, no quota has a slot in use.
    SlotsReturned "slots_returned",
    /// Ten days after the last work only definitions remain.
    DrainsToEmpty "drains_to_empty",
    /// A removal that has begun goes on: the document is not brought back when a part of its data has gone.
    RemovalGoesOn "removal_goes_on",
    /// The memory of an engine does not grow with the work it has done.
    MemoryBounded "memory_bounded",
    /// The reconciler finds nothing to repair unless the store forgot something.
    NothingToRepair "nothing_to_repair",
    /// Nothing is dated before what was acknowledged before it was asked for.
    CreatedInOrder "created_in_order",
    /// The cause that resumed an execution stays with it until it parts again or ends.
    ResumptionKept "resumption_kept",
    /// An entry recorded in a journal comes with every later claim, without gaps, and a step ends once.
    JournalKept "journal_kept",
    /// A schedule moves on over an instant in the commit that starts its run, and no run is made twice.
    EachInstantOnce "each_instant_once",
    /// A bulk job moves on over an execution in the commit that changes it, and never goes back.
    EachMatchOnce "each_match_once",
    /// Every stored document is in a legal state, and no code panics.
    LegalStates "legal_states",
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// The details of what was seen.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant.as_str(), self.detail)
    }
}
