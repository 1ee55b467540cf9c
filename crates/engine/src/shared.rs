//! Readings that many ask for and few need fresh: one look at the store serves all callers within a span. A caller that
//! asks while a look is under way waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ff_core::Result;

/// Readings kept; past it all are dropped.
const CAPACITY: usize = 1_000;

/// The last reading of one thing, and when it was made.
type Reading<V> = Arc<tokio::sync::Mutex<Option<(i64, V)>>>;

/// Readings by name, each good for a while.
pub(crate) struct Shared<V> {
    fresh_ms: i64,
    readings: Mutex<BTreeMap<String, Reading<V>>>,
}

impl<V: Clone> Shared<V> {
    pub(crate) fn for_ms(fresh_ms: i64) -> Self {
        Self { fresh_ms, readings: Mutex::default() }
    }

    /// The last reading if it is fresh, otherwise a new one. A look that fails is not remembered.
    pub(crate) async fn get(
        &self,
        name: &str,
        now_ms: impl Fn() -> i64,
        look: impl Future<Output = Result<V>>,
    ) -> Result<V> {
        let reading = self.reading(name);
        // Held during a look: that the other callers wait for it is what makes one look out of many.
        let mut reading = reading.lock().await;
        if let Some((at, value)) = reading.as_ref()
            && now_ms() - at < self.fresh_ms
        {
            return Ok(value.clone());
        }
        let value = look.await?;
        *reading = Some((now_ms(), value.clone()));
        Ok(value)
    }

    fn reading(&self, name: &str) -> Reading<V> {
        let mut readings = self.readings.lock().expect("no holder of this lock panics");
        if readings.len() >= CAPACITY && !readings.contains_key(name) {
            readings.clear();
        }
        readings.entry(name.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    #[tokio::test]
    async fn one_look_serves_all_who_ask_within_the_span() {
        let (shared, clock, looks) = (Shared::for_ms(2_000), AtomicI64::new(0), AtomicI64::new(0));
        let now = || clock.load(Ordering::SeqCst);
        let look = || async { Ok(looks.fetch_add(1, Ordering::SeqCst) + 1) };
        let (one, other) = tokio::join!(shared.get("a", now, look()), shared.get("a", now, look()));
        assert_eq!((one.unwrap(), other.unwrap()), (1, 1));
        clock.store(1_999, Ordering::SeqCst);
        assert_eq!(shared.get("a", now, look()).await.unwrap(), 1);
        assert_eq!(shared.get("b", now, look()).await.unwrap(), 2);
        clock.store(2_000, Ordering::SeqCst);
        assert_eq!(shared.get("a", now, look()).await.unwrap(), 3);
    }
}
