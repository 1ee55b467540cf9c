//! Which of several servers is the primary of a standalone deployment.
//!
//! A server that calls itself `master` need not be the primary: after a failover the old primary may come back and say
//! the same, with data of the time before. So each primary that is taken gets a number that grows with each change of
//! hands (its reign), and the number is written into its own data. A server that returns carries a smaller number than
//! the one that followed it. If numbers are equal, because no process was there to write a new one, a server that
//! continues another's history is preferred to it, and then the server with more of the history. A process never goes
//! back to a smaller number than it has seen, except to a server that carries on the history of the one it used.
//!
//! A server that was restarted may have lost what it held. Its new process is asked for no data before it has been
//! taken here, and it is not taken while another server may still have the lost data.

use std::sync::PoisonError;

use ff_core::Partition;
use ff_store::{Result, StoreError};
use tokio::task::JoinSet;

use crate::connection::{CallError, Reply, Request};
use crate::resp::{Frame, command};
use crate::topology::{Node, SLOTS, Shard, Topology, address_of, ask};
use crate::transport::info_field;

/// A primary that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reign {
    number: u64,
    address: String,
    /// The process, which has another name after each start.
    run_id: String,
    history: String,
}

/// The answers of a server that calls itself primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sighting {
    address: String,
    replicas: Vec<String>,
    run_id: String,
    /// The name of its history, and of the one that it continues.
    history: String,
    continues: String,
    offset: u64,
    /// The reign that its data speaks of: number and process.
    written: Option<(u64, String)>,
}

impl Sighting {
    fn number(&self) -> u64 {
        self.written.as_ref().map_or(0, |(number, _)| *number)
    }

    /// Whether its data is that of the given history, or continues it.
    fn carries_on(&self, history: &str) -> bool {
        self.history == history || self.continues == history
    }
}

/// The role that a server reports.
enum Seen {
    Primary(Sighting),
    /// A replica, and the number of the reign that its data speaks of.
    Replica(u64),
}

/// What is known about the servers that do not call themselves primary.
#[derive(Debug, Clone, Copy, Default)]
struct Others {
    /// One of them gave no answer.
    unheard: bool,
    /// The largest number among the replicas.
    number: u64,
}

/// Asks all servers, and takes one that may be the primary.
pub(crate) async fn find(topology: &Topology) -> Result<Vec<Shard>> {
    let known = topology.reign.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut asking = JoinSet::new();
    for node in topology.candidates() {
        asking.spawn(async move { (look(&node).await, node) });
    }
    let (mut last, mut primaries) = (StoreError::Unavailable("no server to ask".into()), Vec::new());
    let mut others = Others::default();
    for (answer, node) in asking.join_all().await {
        match answer {
            Ok(Seen::Primary(sighting)) => primaries.push((node, sighting)),
            Ok(Seen::Replica(number)) => {
                others.number = others.number.max(number);
                last = StoreError::ReadOnly(format!("{} is a replica", node.address));
            }
            Err(error @ StoreError::Config(_)) => return Err(error),
            Err(error) => {
                others.unheard = true;
                // "This server is a replica" is a more useful error than "another server is away".
                if !matches!(last, StoreError::ReadOnly(_)) {
                    last = error;
                }
            }
        }
    }
    let sightings: Vec<&Sighting> = primaries.iter().map(|(_, sighting)| sighting).collect();
    let at = match choose(&sightings, known.as_ref(), others) {
        Choice::Take(at) => at,
        Choice::Nobody => return Err(last),
        Choice::Stale(address) => {
            let why = format!(
                "{address} calls itself primary, without the data of the last one; it is not used while another server \
                 may have it"
            );
            return Err(StoreError::Unavailable(why));
        }
    };
    let (node, sighting) = primaries.swap_remove(at);
    node.trust(&sighting.run_id);
    if !topology.only_looks {
        let reign = write_down(&node, &sighting, known.as_ref()).await?;
        *topology.reign.lock().unwrap_or_else(PoisonError::into_inner) = Some(reign);
    }
    Ok(vec![Shard { first: 0, last: SLOTS - 1, primary: sighting.address, replicas: sighting.replicas }])
}

#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Take(usize),
    /// No server calls itself primary.
    Nobody,
    /// A server does, but its data is old.
    Stale(String),
}

fn choose(sightings: &[&Sighting], known: Option<&Reign>, others: Others) -> Choice {
    let may_be = |sighting: &Sighting| match known {
        None => true,
        Some(known) => {
            // After a restart that lost data, the server in use is taken if no other server has more of it.
            let mut numbers = sightings.iter().map(|other| other.number()).chain([others.number]);
            let has_most = !others.unheard && numbers.all(|number| number <= sighting.number());
            (sighting.address == known.address && (sighting.run_id == known.run_id || has_most))
                || sighting.number() >= known.number
                || (sighting.carries_on(&known.history) && sighting.run_id != known.run_id)
        }
    };
    let followed = |sighting: &Sighting| {
        let mut others = sightings.iter().filter(|other| other.address != sighting.address);
        others.any(|other| other.continues == sighting.history)
    };
    let best = sightings.iter().enumerate().filter(|(_, sighting)| may_be(sighting)).max_by_key(|(_, sighting)| {
        let used = known.is_some_and(|known| known.run_id == sighting.run_id);
        (sighting.number(), !followed(sighting), used, sighting.offset)
    });
    match (best, sightings.first()) {
        (Some((at, _)), _) => Choice::Take(at),
        (None, Some(sighting)) => Choice::Stale(sighting.address.clone()),
        (None, None) => Choice::Nobody,
    }
}

/// The key under which the reign is stored.
fn key() -> Vec<u8> {
    format!("{}p", Partition::SYSTEM).into_bytes()
}

/// Begins a new reign if the data names another process.
async fn write_down(node: &Node, sighting: &Sighting, known: Option<&Reign>) -> Result<Reign> {
    let reign = |number| Reign {
        number,
        address: sighting.address.clone(),
        run_id: sighting.run_id.clone(),
        history: sighting.history.clone(),
    };
    if let Some((number, run_id)) = &sighting.written
        && *run_id == sighting.run_id
    {
        return Ok(reign(*number));
    }
    let number = sighting.number().max(known.map_or(0, |known| known.number)) + 1;
    let text = format!("{number} {}", sighting.run_id);
    let request = Request::plain(command(&[b"SET", &key(), text.as_bytes()]));
    match node.call(0, request).await {
        Ok(Reply::Frame(Frame::Error(text))) => {
            Err(crate::refusal::Refusal::parse(&text).into_error(&format!("{}: {text}", node.address)))
        }
        Ok(_) => Ok(reign(number)),
        Err(CallError::Denied(text)) => Err(StoreError::Config(text)),
        Err(why) => Err(StoreError::Unavailable(why.at(&node.address))),
    }
}

async fn look(node: &Node) -> Result<Seen> {
    let unavailable = |why: String| StoreError::Unavailable(format!("{}: {why}", node.address));
    let replicas = match ask(node, &[b"ROLE"]).await? {
        Frame::Array(role) if role.first().and_then(Frame::text) == Some("master") => {
            let replicas = role.into_iter().nth(2).and_then(Frame::into_array).unwrap_or_default();
            replicas.into_iter().filter_map(|replica| address_of(&node.address, replica)).collect()
        }
        // A replica whose data may not be read counts as one that gave no answer.
        Frame::Array(_) => {
            let written = written(node).await.map_err(|why| unavailable(why.to_string()))?;
            return Ok(Seen::Replica(written.map_or(0, |(number, _)| number)));
        }
        Frame::Error(text) => return Err(unavailable(text)),
        _ => return Err(unavailable("it has no role".into())),
    };
    let info = match ask(node, &[b"INFO", b"server", b"replication", b"cluster"]).await? {
        Frame::Bulk(text) => String::from_utf8(text.into()).map_err(|_| unavailable("INFO is not text".into()))?,
        other => return Err(unavailable(format!("INFO gave {other:?}"))),
    };
    let field = |name: &str| info_field(&info, name).unwrap_or_default().to_owned();
    if field("cluster_enabled") == "1" {
        let why = format!("{} is part of a cluster: add cluster=true to the address", node.address);
        return Err(StoreError::Config(why));
    }
    Ok(Seen::Primary(Sighting {
        address: node.address.clone(),
        replicas,
        run_id: field("run_id"),
        history: field("master_replid"),
        continues: field("master_replid2"),
        offset: field("master_repl_offset").parse().unwrap_or(0),
        written: written(node).await?,
    }))
}

/// The reign that the data of a server speaks of.
async fn written(node: &Node) -> Result<Option<(u64, String)>> {
    match ask(node, &[b"GET", &key()]).await? {
        Frame::Bulk(text) => Ok(std::str::from_utf8(&text).ok().and_then(parse_written)),
        Frame::Error(text) => {
            Err(crate::refusal::Refusal::parse(&text).into_error(&format!("{}: {text}", node.address)))
        }
        _ => Ok(None),
    }
}

fn parse_written(text: &str) -> Option<(u64, String)> {
    let (number, run_id) = text.split_once(' ')?;
    Some((number.parse().ok()?, run_id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_HEARD: Others = Others { unheard: false, number: 0 };

    fn sighting(address: &str, written: Option<(u64, &str)>) -> Sighting {
        Sighting {
            address: address.into(),
            replicas: Vec::new(),
            run_id: format!("run-{address}"),
            history: format!("history-{address}"),
            continues: "0".into(),
            offset: 0,
            written: written.map(|(number, run_id)| (number, run_id.to_owned())),
        }
    }

    fn known(number: u64, address: &str) -> Reign {
        let (run_id, history) = (format!("run-{address}"), format!("history-{address}"));
        Reign { number, address: address.into(), run_id, history }
    }

    #[test]
    fn of_two_primaries_the_later_reign_is_taken() {
        let (old, new) = (sighting("a", Some((1, "run-a"))), sighting("b", Some((2, "run-b"))));
        assert_eq!(choose(&[&old, &new], None, ALL_HEARD), Choice::Take(1));
        assert_eq!(choose(&[&new, &old], Some(&known(1, "a")), ALL_HEARD), Choice::Take(0));
    }

    #[test]
    fn a_primary_of_before_is_not_taken_when_it_is_the_only_one_that_answers() {
        let old = sighting("a", Some((1, "run-a")));
        assert_eq!(choose(&[&old], Some(&known(2, "b")), ALL_HEARD), Choice::Stale("a".into()));
        assert_eq!(choose(&[&old], None, ALL_HEARD), Choice::Take(0), "nobody knows better");
    }

    #[test]
    fn whoever_continues_a_history_follows_it() {
        let old = sighting("a", Some((1, "run-a")));
        let mut new = sighting("b", Some((1, "run-a")));
        new.continues = old.history.clone();
        assert_eq!(choose(&[&old, &new], None, ALL_HEARD), Choice::Take(1));
        // Also where the last reign did not reach it.
        new.written = None;
        assert_eq!(choose(&[&new], Some(&known(7, "a")), ALL_HEARD), Choice::Take(0));
    }

    #[test]
    fn a_server_that_restarted_is_the_same_server() {
        let mut restarted = sighting("a", Some((3, "run-a")));
        restarted.run_id = "another".into();
        let unheard = Others { unheard: true, number: 0 };
        assert_eq!(choose(&[&restarted], Some(&known(3, "a")), unheard), Choice::Take(0));
        assert_eq!(choose(&[], Some(&known(3, "a")), ALL_HEARD), Choice::Nobody);
    }

    #[test]
    fn a_server_that_lost_its_data_is_taken_when_nobody_has_it() {
        let mut bare = sighting("a", None);
        (bare.run_id, bare.history) = ("another".into(), "new".into());
        let chosen = |others| choose(&[&bare], Some(&known(3, "a")), others);
        assert_eq!(chosen(Others { unheard: true, number: 0 }), Choice::Stale("a".into()));
        assert_eq!(chosen(Others { unheard: false, number: 3 }), Choice::Stale("a".into()));
        assert_eq!(
            chosen(Others { unheard: false, number: 2 }),
            Choice::Stale("a".into()),
            "older, and more than nothing"
        );
        assert_eq!(chosen(ALL_HEARD), Choice::Take(0), "what it lost, nobody has");
        let older = sighting("b", Some((1, "run-b")));
        assert_eq!(choose(&[&bare, &older], Some(&known(3, "a")), ALL_HEARD), Choice::Stale("a".into()));
    }
}
