//! Lets things go wrong, and mends them.

use std::thread;
use std::time::Duration;

use ff_testkit::proxy::{Trouble, Way};
use serde_json::json;

use crate::crew::Crew;
use crate::fault::Fault;
use crate::fleet::{Build, Fleet, signal};
use crate::history::Recorder;
use crate::store::{DOWN, Store};
use crate::workload::plan;

/// How much longer everything takes on a slow network.
const SLOW: Duration = Duration::from_millis(120);
/// Longer than a server waits for its store, and a client for a server.
const GONE: Duration = Duration::from_secs(12);
/// A clock is wrong by so much.
const HOUR_S: i64 = 3_600;
/// How long a clock stays wrong.
const WRONG_FOR: Duration = Duration::from_secs(4);

/// Servers of two builds serve beside each other for so long before the next one changes.
const MIXED_FOR: Duration = Duration::from_secs(3);

/// How fast faults follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tempo {
    /// How long what was killed stays dead.
    pub down: Duration,
    /// Between two faults.
    pub pause: Duration,
}

impl Tempo {
    /// Everything has settled before the next fault.
    pub const USUAL: Tempo = Tempo { down: DOWN, pause: Duration::from_secs(3) };
    /// Kills follow each other as fast as work goes on between them.
    pub const FAST: Tempo = Tempo { down: Duration::from_millis(300), pause: Duration::from_millis(700) };
}

/// Everything that can be hurt.
#[derive(Debug)]
pub struct Targets<'a> {
    /// The servers.
    pub fleet: &'a Fleet,
    /// The workers.
    pub crew: &'a Crew,
    /// The store.
    pub store: &'a mut Store,
    /// Tells of each fault.
    pub recorder: &'a Recorder,
    /// How fast.
    pub tempo: Tempo,
}

/// Lets something go wrong, and mends it; returns when it is mended.
pub fn strike(fault: Fault, turn: usize, targets: &mut Targets<'_>) -> Result<(), String> {
    let about = json!({ "fault": fault.name() });
    targets.recorder.note("fault", &about);
    hurt(fault, turn, targets)?;
    targets.recorder.note("healed", &about);
    Ok(())
}

fn hurt(fault: Fault, turn: usize, targets: &mut Targets<'_>) -> Result<(), String> {
    let Targets { fleet, crew, store, tempo, .. } = targets;
    let clients = |trouble, all| {
        fleet.disturb(trouble, all);
        thread::sleep(DOWN);
        fleet.disturb(Trouble::None, true);
    };
    match fault {
        Fault::ServerKill => {
            let (server, _) = fleet.kill();
            thread::sleep(tempo.down);
            fleet.restart(server)?;
        }
        Fault::ServerStop => fleet.pause(DOWN),
        Fault::Rolling => {
            for server in 0..fleet.count() {
                fleet.terminate(server)?;
                fleet.restart(server)?;
            }
        }
        Fault::Upgrade => {
            let back = !turn.is_multiple_of(2) && store.takes_older_servers_back();
            for server in 0..fleet.count() {
                fleet.change_build(server, if back { Build::Older } else { Build::This })?;
                thread::sleep(MIXED_FOR);
            }
        }
        Fault::WorkerKill => {
            let worker = crew.kill();
            thread::sleep(tempo.down / 3);
            crew.restart(worker)?;
        }
        Fault::WorkerStop => {
            let frozen = crew.freeze();
            thread::sleep(Duration::from_millis(plan::LEASE_TTL_MS.unsigned_abs() + 1_500));
            frozen.into_iter().for_each(|pid| signal("-CONT", pid));
        }
        Fault::Clock => {
            for seconds in [HOUR_S, -HOUR_S, 0] {
                // The same server each time: the victim goes round.
                for _ in 0..fleet.count() {
                    fleet.step_clock(if turn.is_multiple_of(2) { seconds } else { -seconds })?;
                }
                thread::sleep(WRONG_FOR);
            }
        }
        Fault::ClientsCut => clients(Trouble::Cut, true),
        Fault::ClientsMute => clients(Trouble::Held(Way::Request), false),
        Fault::ClientsDeaf => clients(Trouble::Held(Way::Reply), false),
        Fault::ClientsHole => clients(Trouble::BlackHole, true),
        Fault::ClientsDelay => clients(Trouble::Delay(SLOW), true),
        Fault::ClientsReset => clients(Trouble::CutBeforeReply, true),
        Fault::StoreCut => store.disturb(Trouble::Cut, DOWN),
        Fault::StoreMute => store.disturb(Trouble::Held(Way::Request), DOWN),
        Fault::StoreDeaf => store.disturb(Trouble::Held(Way::Reply), DOWN),
        Fault::StoreHole => store.disturb(Trouble::BlackHole, DOWN),
        Fault::StoreDelay => store.disturb(Trouble::Delay(SLOW), DOWN),
        Fault::StoreReset => store.disturb(Trouble::CutBeforeReply, DOWN),
        Fault::StoreKill => store.kill(tempo.down),
        Fault::StoreGone => store.kill(GONE),
        Fault::StoreStop => store.freeze(),
        Fault::StoreFull => store.fill()?,
        Fault::FunctionFlush => store.flush_functions(),
        Fault::Failover => store.fail_over(),
        Fault::PrimaryKill => store.kill_primary(turn),
        Fault::SlotMove => store.move_slots(turn),
        Fault::Terminate => store.terminate_backends(),
        Fault::LockTable => store.lock_table(),
    }
    Ok(())
}
