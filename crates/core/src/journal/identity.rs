//! The identity of an entry of a journal, and the ids that follow from it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{StepEntry, StepRecord, StepState, step_name};
use crate::error::{Error, Result};
use crate::id::{ExecutionId, WaitpointId};
use crate::op::parts;
use crate::partition::digest16;
use crate::text;

/// Which entry of a journal: its name, and its key or how many calls of the name came before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StepIdentity {
    /// Its name in the program.
    pub name: String,
    /// The caller's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which call of the name it is, from 0, when it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<u32>,
}
crate::newer::open_struct!(StepIdentity);

impl StepIdentity {
    /// Refuses a name, key or number that no entry can have.
    pub fn validate(&self) -> Result<()> {
        step_name(&self.name)?;
        parts::optional(self.key.as_deref(), "key", text::label)?;
        if self.key.is_some() && self.occurrence.is_some() {
            return Err(Error::invalid("occurrence", "counts calls without a key; it goes with none"));
        }
        Ok(())
    }

    /// The entry as recorded when its failure ended the attempt and a retry will run it again.
    pub fn retried_at(&self, at: i64, reason: &str) -> StepEntry {
        StepEntry {
            name: self.name.clone(),
            key: self.key.clone(),
            occurrence: self.occurrence,
            state: StepState::Retrying,
            message: Some(reason.to_owned()),
            next_at: Some(at),
            ..Default::default()
        }
    }

    /// A short text that names the entry for people: its name, and its key or number where it has one.
    pub fn label(&self) -> String {
        match (&self.key, self.occurrence) {
            (Some(key), _) => format!("{}[{key}]", self.name),
            (None, None | Some(0)) => self.name.clone(),
            (None, Some(occurrence)) => format!("{}#{occurrence}", self.name),
        }
    }

    /// The waitpoint of this entry. Its id follows from the execution and the entry, so that a sender that knows both
    /// knows where the signal goes.
    pub fn waitpoint_id(&self, execution: &ExecutionId, generation: u32) -> WaitpointId {
        WaitpointId { partition: execution.partition, uuid: self.derive(b"waitpoint", execution, generation) }
    }

    /// The id of this entry's child. It follows from the entry, so that spawning the child again finds it.
    pub fn child_id(&self, execution: &ExecutionId, generation: u32) -> ExecutionId {
        ExecutionId { partition: execution.partition, uuid: self.derive(b"child", execution, generation) }
    }

    /// A UUID for a program: the same whenever the program asks under this name in one generation.
    pub fn uuid(&self, execution: &ExecutionId, generation: u32) -> Uuid {
        self.derive(b"uuid", execution, generation)
    }

    /// A random number from 0 up to 1 for a program: the same whenever the program asks under this name in one
    /// generation.
    pub fn random(&self, execution: &ExecutionId, generation: u32) -> f64 {
        let (first_bytes, _) = self.derive(b"random", execution, generation).as_u64_pair();
        // A double has 53 bits for a fraction, so neither conversion rounds.
        (first_bytes >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn derive(&self, what: &[u8], execution: &ExecutionId, generation: u32) -> Uuid {
        let generation = generation.to_be_bytes();
        let (space, place): (&[u8], Vec<u8>) = match &self.key {
            Some(key) => (b"key", key.as_bytes().to_vec()),
            None => (b"count", self.occurrence.unwrap_or(0).to_be_bytes().to_vec()),
        };
        let digest = digest16(&[what, execution.uuid.as_bytes(), &generation, self.name.as_bytes(), space, &place]);
        Uuid::from_bytes(digest)
    }

    /// Whether both name one entry.
    pub fn is_same(&self, other: &StepIdentity) -> bool {
        self.name == other.name
            && self.key == other.key
            && (self.key.is_some() || self.occurrence.unwrap_or(0) == other.occurrence.unwrap_or(0))
    }

    /// Whether a record speaks of this entry.
    pub fn is_of(&self, record: &StepRecord) -> bool {
        self.name == record.name
            && self.key == record.key
            && (self.key.is_some() || self.occurrence.unwrap_or(0) == record.occurrence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids are those of docs/durable.md: SDKs of other languages derive them, too.
    #[test]
    fn ids_derive_as_the_documentation_says() {
        let execution =
            ExecutionId { partition: 0xff, uuid: Uuid::from_u128(0x0190_a0a0_0000_7000_8000_0000_0000_0001) };
        let vectors = [
            ("waitpoint", 0, "decision", None, 0, "eb4bb048-811b-28ef-324b-dfbd9228da84"),
            ("waitpoint", 0, "decision", None, 1, "a26187cf-934a-cc1c-4ab7-af669e65451f"),
            ("waitpoint", 3, "decision", None, 0, "02b63d23-0767-b937-04d2-633bda74e13b"),
            ("waitpoint", 0, "mail", Some("kunde-7"), 0, "d9d2f6c1-67a0-cb84-e66b-f77c1dbf50d5"),
            ("waitpoint", 0, "Prüfung", Some("ä"), 0, "5cea0afe-24db-2c59-9575-4e50ab4b3613"),
            ("child", 0, "decision", None, 0, "196a601b-03d1-7d4b-217e-63c46e0e123d"),
            ("child", 0, "decision", None, 1, "26c7db39-bddf-6d96-ac69-f65ea83f41b1"),
            ("child", 3, "decision", None, 0, "76e48291-da45-306e-e627-7db39d8b2bf1"),
            ("child", 0, "mail", Some("kunde-7"), 0, "865adaa2-2f9f-dc5d-a55a-eb5633759892"),
            ("child", 0, "Prüfung", Some("ä"), 0, "9dfab3fc-32db-17e7-8609-f4309db3f5da"),
        ];
        for (what, generation, name, key, occurrence, expected) in vectors {
            let step = StepIdentity {
                name: name.into(),
                key: key.map(str::to_owned),
                occurrence: key.is_none().then_some(occurrence),
            };
            let derived = match what {
                "waitpoint" => step.waitpoint_id(&execution, generation).to_string(),
                _ => step.child_id(&execution, generation).to_string(),
            };
            assert_eq!(derived, format!("00ff-{expected}"), "{what} {name}");
        }
    }

    /// The numbers are those of docs/durable.md: what one SDK drew, another draws again.
    #[test]
    fn chance_derives_as_the_documentation_says() {
        let execution =
            ExecutionId { partition: 0xff, uuid: Uuid::from_u128(0x0190_a0a0_0000_7000_8000_0000_0000_0001) };
        let vectors = [
            (0, "dice", None, "1ad4669e-fc67-20e0-6e50-8bba531738ef", 0.8358342164234133),
            (3, "dice", None, "b9c2be7d-6903-98c0-6745-9a30ce5375b1", 0.7915264080724156),
            (0, "dice", Some("7"), "8917a7e5-38e1-87c1-8cf0-b17c91bb4fa6", 0.6947734538921776),
            (0, "Würfel", Some("ä"), "64556713-7f76-9c43-1cfc-b8668cce047e", 0.3211619651782107),
        ];
        for (generation, name, key, uuid, random) in vectors {
            let step = StepIdentity { name: name.into(), key: key.map(str::to_owned), occurrence: None };
            assert_eq!(step.uuid(&execution, generation).to_string(), uuid, "{name}");
            assert_eq!(step.random(&execution, generation).to_bits(), f64::to_bits(random), "{name}");
        }
    }
}
