//! The stored entries that could not be decoded, as the doctor shows them.

use std::collections::VecDeque;
use std::sync::Mutex;

use ff_core::op::UndecodableEntry;
use ff_core::{Error, Key};

/// How many different entries are remembered.
const REMEMBERED_MAX: usize = 20;

/// The last entries that could not be decoded.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<VecDeque<UndecodableEntry>>);

impl Undecodable {
    /// Remembers an entry; the one seen last stands last.
    pub(crate) fn note(&self, key: &Key, error: &Error, now: i64) {
        let mut entries = self.0.lock().expect("no holder of this lock panics");
        let key = format!("{key:?}");
        entries.retain(|known| known.key != key);
        if entries.len() == REMEMBERED_MAX {
            entries.pop_front();
        }
        entries.push_back(UndecodableEntry { key, error: error.detail.clone(), seen_at: now });
    }

    pub(crate) fn entries(&self) -> Vec<UndecodableEntry> {
        self.0.lock().expect("no holder of this lock panics").iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use ff_core::Code;

    use super::*;

    #[test]
    fn entries_are_remembered_once_and_the_oldest_go_first() {
        let noted = Undecodable::default();
        let error = Error::new(Code::CorruptDocument, "torn");
        let key = |number: u8| Key::from_bytes([number]);
        for at in 0..5 {
            noted.note(&key(1), &error, at);
        }
        assert_eq!(noted.entries().len(), 1);
        for number in 0..100 {
            noted.note(&key(number), &error, 20_000);
        }
        let entries = noted.entries();
        assert_eq!(
            (entries.len(), entries.last().map(|last| last.key.clone())),
            (REMEMBERED_MAX, Some(format!("{:?}", key(99))))
        );
    }
}
