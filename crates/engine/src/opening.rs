//! Gates that open: a document that refused work remembers where it is parked, and lets it in when there is room again.

use ff_core::budget::{Amounts, Budget};
use ff_core::gate::Parked;
use ff_core::quota::QuotaPolicy;
use ff_core::{Partition, PartitionConfig};
use serde::{Deserialize, Serialize};

/// A gate that has opened: the partitions in which executions wait for it, and how many of them can run.
///
/// It is kept with the answer to the command that opened the gate, so that a repeat of the command lets in the same
/// executions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    #[serde(with = "places")]
    pub(crate) places: Vec<Partition>,
    pub(crate) count: u64,
    /// See [`GateDocument::given_back`], by then.
    pub(crate) given_back: u64,
    /// The smallest estimates that were waited with by then.
    #[serde(default, skip_serializing_if = "Amounts::is_empty")]
    pub(crate) awaited: Amounts,
    /// The gate has not opened, and will after this time without any change of its document.
    #[serde(skip)]
    pub(crate) opens_in_ms: Option<i64>,
}

/// Serialises places as numbers: executions wait in flow partitions only.
mod places {
    use ff_core::Partition;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(places: &[Partition], serializer: S) -> Result<S::Ok, S::Error> {
        places.iter().map(|place| place.number).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Partition>, D::Error> {
        let numbers = Vec::<u16>::deserialize(deserializer)?;
        Ok(numbers.into_iter().map(Partition::flow).collect())
    }
}

impl Opened {
    /// The same places, for a multiple of the count.
    pub(crate) fn times(self, times: u64) -> Self {
        Self { count: self.count.saturating_mul(times), ..self }
    }

    /// Takes the recorded places of a gate that admits this many, which forgets them.
    pub(crate) fn take<G: GateDocument>(gate: &mut G, count: u64, config: &PartitionConfig) -> Self {
        let given_back = gate.given_back();
        let parked = gate.parked();
        if count == 0 || parked.is_empty() {
            return Self::default();
        }
        let places = parked.places(config);
        parked.clear();
        Self { places, count, given_back, awaited: gate.take_awaited(), opens_in_ms: None }
    }

    /// A gate that stays closed, and perhaps opens by itself for the executions that wait there.
    pub(crate) fn later<G: GateDocument>(gate: &mut G, now: i64) -> Self {
        let waited_for = !gate.parked().is_empty();
        let opens_at = gate.reopens_at(now).filter(|_| waited_for);
        Self { opens_in_ms: opens_at.map(|at| at - now), ..Self::default() }
    }
}

/// A document that can refuse work and remembers where it is parked.
pub(crate) trait GateDocument: ff_core::Indexed {
    /// Where something is parked.
    fn parked(&mut self) -> &mut Parked;
    /// How many can run now.
    fn room(&self, now: i64) -> u64;
    /// A number that changes with every slot that is given back.
    fn given_back(&self) -> u64;
    /// When it has room for those that wait without timers of their own, if time alone brings it.
    fn reopens_at(&self, _now: i64) -> Option<i64> {
        None
    }
    /// Whether those that wait can be expected to find room.
    fn is_worth_waking(&self) -> bool {
        true
    }
    /// An execution waits with this estimate. Says whether there is still no room for it.
    fn await_room(&mut self, _: &Amounts) -> bool {
        false
    }
    /// Notes that executions are left waiting, the smallest of them perhaps with these estimates.
    fn await_all(&mut self, _: &Amounts) {}
    /// Takes the noted estimates, which the gate forgets; executions that still do not fit note theirs anew.
    fn take_awaited(&mut self) -> Amounts {
        Amounts::new()
    }
}

impl GateDocument for Budget {
    fn parked(&mut self) -> &mut Parked {
        &mut self.parked_in
    }
    fn room(&self, _: i64) -> u64 {
        self.release_count()
    }
    /// A budget has no slots: what is left of it says whether something came back.
    fn given_back(&self) -> u64 {
        self.release_count()
    }
    fn is_worth_waking(&self) -> bool {
        Budget::is_worth_waking(self)
    }
    fn await_room(&mut self, estimate: &Amounts) -> bool {
        Budget::await_room(self, estimate)
    }
    fn await_all(&mut self, amounts: &Amounts) {
        Budget::await_all(self, amounts);
    }
    fn take_awaited(&mut self) -> Amounts {
        std::mem::take(&mut self.awaited)
    }
}

impl GateDocument for QuotaPolicy {
    fn parked(&mut self) -> &mut Parked {
        &mut self.parked_in
    }
    fn room(&self, now: i64) -> u64 {
        self.release_count(now)
    }
    fn given_back(&self) -> u64 {
        self.given_back
    }
    fn reopens_at(&self, now: i64) -> Option<i64> {
        QuotaPolicy::reopens_at(self, now)
    }
}
