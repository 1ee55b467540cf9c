//! Reads key by key, for a slot that is on its way to another server.
//!
//! While a slot moves, a call whose keys are at both servers is refused. A call with one key is not: the server that
//! has the key answers. So the queries are taken apart, and an answer that needs several keys is put together from
//! several instants. Callers allow for that anyway, because a change may fall between two answers of one read: the
//! guards of a commit check every decision that is made from them.

use ff_core::{IndexName, Key, Partition};
use ff_store::{Answer, Answers, Query, Result, Scan, StoreError, StoredDocument};
use tokio::time::{Duration, sleep};

use crate::read::{self, Style};
use crate::route::{self, Failure, Follow};
use crate::topology::{Topology, slot_of};

/// Attempts for one key. A key itself is refused only in the moment in which it travels.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Answers the queries, each key with a call of its own.
pub(crate) async fn read(topology: &Topology, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
    let apart = Apart { topology, partition };
    let mut whole = Answers { at: 0, answers: Vec::with_capacity(queries.len()) };
    for query in queries {
        let (at, answer) = apart.answer(query).await?;
        whole.at = whole.at.max(at);
        whole.answers.push(answer);
    }
    Ok(whole)
}

struct Apart<'t> {
    topology: &'t Topology,
    partition: Partition,
}

impl Apart<'_> {
    async fn answer(&self, query: Query) -> Result<(i64, Answer)> {
        match query {
            Query::Documents(keys) => {
                let (at, documents) = self.documents(keys).await?;
                Ok((at, Answer::Documents(documents)))
            }
            Query::Blobs(keys) => {
                let (mut latest, mut blobs) = (0, Vec::with_capacity(keys.len()));
                for key in keys {
                    let (at, answer) = self.ask(Query::Blobs(vec![key])).await?;
                    latest = latest.max(at);
                    blobs.extend(answer.into_blobs().unwrap_or_default());
                }
                Ok((latest, Answer::Blobs(blobs)))
            }
            Query::Scan(scan) if scan.documents => self.scan(scan).await,
            Query::Indexes { prefix, after, limit } => self.indexes(prefix, after, limit).await,
            one_key => self.ask(one_key).await,
        }
    }

    async fn documents(&self, keys: Vec<Key>) -> Result<(i64, Vec<Option<StoredDocument>>)> {
        let (mut latest, mut documents) = (0, Vec::with_capacity(keys.len()));
        for key in keys {
            let (at, answer) = self.ask(Query::Documents(vec![key])).await?;
            latest = latest.max(at);
            documents.extend(answer.into_documents().unwrap_or_default());
        }
        Ok((latest, documents))
    }

    async fn scan(&self, scan: Scan) -> Result<(i64, Answer)> {
        let (_, answer) = self.ask(Query::Scan(Scan { documents: false, ..scan })).await?;
        let mut page = answer.into_scan().ok_or_else(odd)?;
        let members = page.entries.iter().map(|entry| entry.member.clone()).collect();
        let (at, documents) = self.documents(members).await?;
        for (entry, document) in page.entries.iter_mut().zip(documents) {
            entry.document = document;
        }
        Ok((at, Answer::Scan(page)))
    }

    /// Reads the list of names, and asks for each index whether it is empty.
    async fn indexes(&self, prefix: Vec<u8>, after: Option<IndexName>, limit: usize) -> Result<(i64, Answer)> {
        let (mut latest, mut after) = (i64::MIN, after);
        let mut found: Vec<IndexName> = Vec::new();
        // A page of names may contain empty indexes. The page is filled up, because a short page would look like the
        // last one.
        loop {
            let wanted = limit - found.len();
            let query = Query::Indexes { prefix: prefix.clone(), after: after.take(), limit: wanted };
            let (at, listed) = self.ask(query).await?;
            latest = latest.max(at);
            let listed = listed.into_indexes().ok_or_else(odd)?;
            after = listed.last().filter(|_| listed.len() == wanted).cloned();
            for index in listed {
                let (at, count) = self.ask(Query::count_all(index.clone())).await?;
                latest = latest.max(at);
                if count.into_count().is_some_and(|count| count > 0) {
                    found.push(index);
                }
            }
            if after.is_none() || found.len() >= limit {
                return Ok((latest, Answer::Indexes(found)));
            }
        }
    }

    /// A query of one key.
    async fn ask(&self, query: Query) -> Result<(i64, Answer)> {
        let queries = vec![query];
        let bytes = read::encode(self.partition, &queries, Style::NamedKeys);
        let slot = slot_of(self.partition);
        for _ in 0..ATTEMPTS {
            match route::read(self.topology, slot, &bytes, Follow::Keys).await {
                Ok(frame) => {
                    let (answers, _) = read::decode(queries, frame)?;
                    return Ok((answers.at, answers.answers.into_iter().next().ok_or_else(odd)?));
                }
                Err(Failure::Store(error)) => return Err(error),
                Err(Failure::Moving) => sleep(PAUSE).await,
            }
        }
        Err(StoreError::Unavailable(format!("slot {slot} is moving")))
    }
}

fn odd() -> StoreError {
    StoreError::Corrupt("the read function gave an answer of another shape".into())
}
