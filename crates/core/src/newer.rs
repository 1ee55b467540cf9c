//! Parts of an answer that a newer server wrote and this version does not know. A reader keeps them: one new word in a list of
//! a thousand must not hide the rest.
//!
//! Only answers are read so. A request with an unknown word or field is refused, and a stored document is as strict as ever;
//! see [`is_answer`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use serde::de::value::CowStrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::encoding::{FieldName, is_answer};
use crate::error::Error;

/// Words that one process keeps: a server with ever new ones must not fill its memory.
const WORDS_MAX: usize = 1_024;
/// No word of the API comes near this length.
const WORD_MAX_BYTES: usize = 128;
/// Stands for a word beyond these limits.
const NAMELESS: &str = "unknown";

/// A word of a newer server: its number among those that the process has kept, so that an enum with it stays small.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word(u16);

static WORDS: RwLock<Words> = RwLock::new(Words(Vec::new()));

impl Word {
    /// Keeps a word.
    pub(crate) fn new(word: &str) -> Self {
        // A list is whole between two calls, whatever became of its last user.
        WORDS.write().unwrap_or_else(PoisonError::into_inner).keep(word)
    }

    /// The word as the server wrote it.
    pub fn as_str(self) -> &'static str {
        WORDS.read().unwrap_or_else(PoisonError::into_inner).get(self)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The words that were kept, for the life of the process.
struct Words(Vec<&'static str>);

impl Words {
    fn keep(&mut self, word: &str) -> Word {
        let known = self.0.iter().position(|known| *known == word);
        let place = known.unwrap_or(self.0.len());
        let Some(number) = u16::try_from(place).ok().filter(|_| place < WORDS_MAX && word.len() <= WORD_MAX_BYTES)
        else {
            return Word(u16::MAX);
        };
        if known.is_none() {
            self.0.push(Box::leak(word.into()));
        }
        Word(number)
    }

    fn get(&self, word: Word) -> &'static str {
        self.0.get(usize::from(word.0)).copied().unwrap_or(NAMELESS)
    }
}

/// A variant of a newer server, as the JSON it came in.
#[derive(Debug, Clone)]
pub struct Variant(Box<RawValue>);

impl Variant {
    /// The JSON.
    pub fn json(&self) -> &str {
        self.0.get()
    }

    /// The refusal of a request that holds it.
    pub fn refused(&self, field: &str) -> Error {
        Error::invalid(field, "is of a kind that this version does not know")
    }

    /// A field of the variant, if it has one of this name that can be read.
    pub fn field<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(self.json()).ok()?;
        serde_json::from_str(fields.remove(name)?.get()).ok()
    }
}

impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl Eq for Variant {}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Reads a variant that may be a newer one.
pub(crate) fn read_variant<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    known: impl FnOnce(&mut serde_json::Deserializer<serde_json::de::StrRead<'_>>) -> serde_json::Result<T>,
    newer: impl FnOnce(Variant) -> T,
) -> Result<T, D::Error> {
    let json = Box::<RawValue>::deserialize(deserializer)?;
    Ok(known(&mut serde_json::Deserializer::from_str(json.get())).unwrap_or_else(|_| newer(Variant(json))))
}

/// Lets an enum with the variant `Unknown(Variant)` be read from newer answers. Its derived code is `remote = "Self"`.
macro_rules! open_enum {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $name::Unknown(variant) => variant.serialize(serializer),
                    known => $name::serialize(known, serializer),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match deserializer.is_human_readable() && $crate::encoding::is_answer() {
                    true => {
                        $crate::newer::read_variant(deserializer, |known| $name::deserialize(known), $name::Unknown)
                    }
                    false => $name::deserialize($crate::newer::Variants(deserializer)),
                }
            }
        }
    };
}
pub(crate) use open_enum;

/// Lets a struct that refuses unknown fields pass over them in answers, and has it read from JSON objects alone. Its derived
/// code is `remote = "Self"`.
macro_rules! open_struct {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $name::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $name::deserialize($crate::newer::Fields(deserializer))
            }
        }
    };
}
pub(crate) use open_struct;

/// Reads a struct: JSON has it as an object, and in an answer the fields that it does not know are passed over.
pub(crate) struct Fields<D>(pub(crate) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Fields<D> {
    type Error = D::Error;

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let known = KnownFields { fields, inner: visitor };
        match self.0.is_human_readable() {
            // A derived reader takes the items of a JSON array for its fields, in their order: an empty array for a filter
            // would be a filter that everything fits.
            true => self.0.deserialize_map(known),
            false => self.0.deserialize_struct(name, fields, known),
        }
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Reads an enum whose variants may have fields: JSON has these as an object, as it has those of a struct.
pub(crate) struct Variants<D>(pub(crate) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Variants<D> {
    type Error = D::Error;

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        match self.0.is_human_readable() {
            true => self.0.deserialize_enum(name, variants, Variants(visitor)),
            false => self.0.deserialize_enum(name, variants, visitor),
        }
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Variants<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Variants(data))
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Variants<A> {
    type Error = A::Error;
    type Variant = Variants<A::Variant>;

    fn variant_seed<K: DeserializeSeed<'de>>(self, seed: K) -> Result<(K::Value, Self::Variant), A::Error> {
        let (name, content) = self.0.variant_seed(seed)?;
        Ok((name, Variants(content)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Variants<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        self.0.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(AsObject(visitor))
    }
}

/// Reads the fields of a variant from an object alone.
struct AsObject<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for AsObject<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

/// A visitor of a struct, or its fields, without the unknown ones.
struct KnownFields<V> {
    fields: &'static [&'static str],
    inner: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for KnownFields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(KnownFields { fields: self.fields, inner: map })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(list)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        if !is_answer() {
            return self.inner.next_key_seed(seed);
        }
        while let Some(FieldName(name)) = self.inner.next_key()? {
            if self.fields.contains(&&*name) {
                let name: CowStrDeserializer<'_, A::Error> = name.into_deserializer();
                return seed.deserialize(name).map(Some);
            }
            self.inner.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::read_answer;
    use crate::execution::FailOutcome;
    use crate::state::PublicState;

    #[test]
    fn a_new_word_keeps_its_name_and_is_never_stored() {
        let state: PublicState = read_answer(|| serde_json::from_str("\"hibernating\"")).unwrap();
        assert_eq!((state.as_str(), state.is_terminal()), ("hibernating", false));
        assert_eq!(serde_json::to_string(&state).unwrap(), "\"hibernating\"");
        assert!(rmp_serde::to_vec(&state).is_err());
        assert!(serde_json::from_str::<PublicState>("\"hibernating\"").is_err(), "a request");
        assert!(!PublicState::ALL.contains(&state));
    }

    #[test]
    fn a_new_variant_keeps_its_json() {
        let json = r#"{"outcome":"frozen","until":1.50}"#;
        let outcome: FailOutcome = read_answer(|| serde_json::from_str(json)).unwrap();
        let FailOutcome::Unknown(variant) = &outcome else { panic!("{outcome:?}") };
        assert_eq!((variant.json(), variant.field("until"), variant.field::<i64>("at")), (json, Some(1.5), None));
        assert_eq!(serde_json::to_string(&outcome).unwrap(), json);
        assert!(serde_json::from_str::<FailOutcome>(json).is_err(), "only answers are read so");
    }

    #[test]
    fn words_without_end_do_not_fill_the_memory() {
        let mut words = Words(Vec::new());
        let mut name_of = |word: &str| {
            let kept = words.keep(word);
            words.get(kept)
        };
        assert_eq!(name_of(&"x".repeat(WORD_MAX_BYTES + 1)), NAMELESS);
        for number in 0..WORDS_MAX {
            assert_ne!(name_of(&format!("word-{number}")), NAMELESS);
        }
        assert_eq!((name_of("one-more"), name_of("word-0")), (NAMELESS, "word-0"));
        assert_eq!(size_of::<PublicState>(), 4, "documents hold many such enums");
    }

    #[test]
    fn an_array_is_no_object() {
        use crate::op::{BulkFilter, ExchangeEnding};
        use crate::policy_request::PolicyRequest;
        assert!(serde_json::from_str::<BulkFilter>("{}").is_ok());
        for array in ["[]", "[null]", r#"["failed"]"#] {
            let error = serde_json::from_str::<BulkFilter>(array).unwrap_err().to_string();
            assert!(error.contains("sequence"), "{error}");
            assert!(serde_json::from_str::<PolicyRequest>(array).is_err(), "{array}");
        }
        assert!(serde_json::from_str::<ExchangeEnding>(r#"{ "delay": [] }"#).is_err());
        use crate::policy::Backoff;
        assert!(serde_json::from_str::<Backoff>(r#"{ "fixed": { "delay_ms": 5 } }"#).is_ok());
        for array in [r#"{ "fixed": [5] }"#, r#"{ "exponential": [] }"#, r#"["fixed"]"#] {
            assert!(serde_json::from_str::<Backoff>(array).is_err(), "{array}");
        }
        // Documents are stored as arrays of their fields, and read so.
        let stored = rmp_serde::to_vec(&BulkFilter::default()).unwrap();
        assert_eq!(rmp_serde::from_slice::<BulkFilter>(&stored).unwrap(), BulkFilter::default());
    }
}
