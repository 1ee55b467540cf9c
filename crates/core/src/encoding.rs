//! The one encoding of everything stored: msgpack maps with one- or two-letter keys, defaults left out, unknown keys
//! kept, behind one byte of schema version. Stores treat it as opaque bytes.
//!
//! [`document!`](crate::document) declares a struct once and gives it two forms: short keys in the store, its field
//! names in JSON. In the store an unknown key is kept (a newer process wrote it); in JSON it is refused.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};

/// The layout that this version writes. It reads every older one: in layout 1 an execution had no set of holds.
pub const SCHEMA: u8 = 2;

/// Keys that this version does not know, kept as a newer version wrote them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extra(Vec<(String, rmpv::Value)>);

impl Extra {
    /// How many unknown keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether every key was known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[doc(hidden)]
    pub fn push(&mut self, key: String, value: rmpv::Value) {
        self.0.push((key, value));
    }

    #[doc(hidden)]
    pub fn iter(&self) -> impl Iterator<Item = &(String, rmpv::Value)> {
        self.0.iter()
    }
}

/// The msgpack form of something small that is no document, such as a record of a log. It must hold only types that msgpack
/// can express.
pub fn pack(value: &impl Serialize) -> Vec<u8> {
    on_scratch(|bytes| pack_into(value, bytes), <[u8]>::to_vec)
}

fn pack_into(value: &impl Serialize, bytes: &mut Vec<u8>) {
    value.serialize(&mut rmp_serde::Serializer::new(bytes)).expect("only types that msgpack can express");
}

/// What one commit writes, encoded into as few allocations as there can be. Everything in it lives as long as the last of
/// it: a copy that is to live long has to be one of its own.
#[derive(Debug, Default)]
pub struct Encoded(BytesMut);

/// Room for the document, the event and the hint of a usual commit.
const ENCODED_USUAL_BYTES: usize = 512;

impl Encoded {
    /// The bytes to store of a document.
    pub fn document(&mut self, document: &impl Document) -> Bytes {
        on_scratch(|bytes| document.encode_into(bytes), |bytes| self.add(bytes))
    }

    /// The msgpack form of something small; see [`pack`].
    pub fn record(&mut self, value: &impl Serialize) -> Bytes {
        on_scratch(|bytes| pack_into(value, bytes), |bytes| self.add(bytes))
    }

    fn add(&mut self, bytes: &[u8]) -> Bytes {
        if self.0.capacity() < bytes.len() {
            self.0 = BytesMut::with_capacity(bytes.len().max(ENCODED_USUAL_BYTES));
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

/// A longer scratch buffer is not kept.
const SCRATCH_MAX_BYTES: usize = 64 * 1024;

thread_local! {
    /// The buffer that this thread encodes into. One that begins empty would grow half a dozen times with each document.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Encodes into this thread's buffer, and takes from there what was encoded.
fn on_scratch<T>(encode: impl FnOnce(&mut Vec<u8>), take: impl FnOnce(&[u8]) -> T) -> T {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    encode(&mut scratch);
    let taken = take(&scratch);
    if scratch.capacity() <= SCRATCH_MAX_BYTES {
        SCRATCH.set(scratch);
    }
    taken
}

/// Something that is stored under a key of its own.
pub trait Document: Serialize + DeserializeOwned {
    /// The first byte of its key.
    const KIND: u8;

    /// The bytes to store.
    fn encode(&self) -> Vec<u8> {
        on_scratch(|bytes| self.encode_into(bytes), <[u8]>::to_vec)
    }

    /// Adds the bytes to store to others.
    fn encode_into(&self, bytes: &mut Vec<u8>) {
        encode_into(self, bytes);
    }

    /// The document in these bytes.
    fn decode(bytes: &[u8]) -> Result<Self> {
        decoded(bytes)
    }

    /// Fills in the fields that an older layout did not have.
    fn upgrade(&mut self, _from: u8) {}
}

pub(crate) fn encode_into<D: Document>(document: &D, bytes: &mut Vec<u8>) {
    bytes.push(SCHEMA);
    let mut serializer = rmp_serde::Serializer::new(bytes);
    document.serialize(&mut serializer).expect("documents hold only types that msgpack can express");
}

pub(crate) fn decoded<D: Document>(bytes: &[u8]) -> Result<D> {
    let corrupt = |why: String| Error::new(Code::CorruptDocument, why).with("kind", char::from(D::KIND));
    let Some((&schema, body)) = bytes.split_first() else {
        return Err(corrupt("the document is empty".into()));
    };
    if schema == 0 || schema > SCHEMA {
        return Err(corrupt(format!("the document has schema {schema}, this version reads 1 to {SCHEMA}")));
    }
    let mut document: D = rmp_serde::from_slice(body).map_err(|error| corrupt(error.to_string()))?;
    if schema < SCHEMA {
        document.upgrade(schema);
    }
    Ok(document)
}

/// Implements encoding and decoding inside of an implementation of [`Document`], so that they are compiled in core. As
/// defaults of the trait they would be compiled again by every crate that reads or writes such documents.
macro_rules! compiled_here {
    () => {
        fn encode_into(&self, bytes: &mut Vec<u8>) {
            $crate::encoding::encode_into(self, bytes);
        }

        fn decode(bytes: &[u8]) -> $crate::error::Result<Self> {
            $crate::encoding::decoded(bytes)
        }
    };
}
pub(crate) use compiled_here;

/// Declares a stored struct: `"short" field: Type = default`. See the module's documentation.
#[macro_export]
macro_rules! document {
    ($(#[$meta:meta])* pub struct $name:ident { $( $(#[$fmeta:meta])* $short:literal $field:ident : $ty:ty $(= $default:expr)? ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
            /// Keys of a newer version, kept through a round trip.
            pub extra: $crate::encoding::Extra,
        }
        $crate::document!(@impls $name { $( $short $field : $ty $(= $default)? ),* });
    };
    ($(#[$meta:meta])* pub api struct $name:ident { $( $(#[$fmeta:meta])* $short:literal $field:ident : $ty:ty $(= $default:expr)? ),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(default, deny_unknown_fields))]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
            /// Keys of a newer version, kept through a round trip.
            #[cfg_attr(feature = "schema", schemars(skip))]
            pub extra: $crate::encoding::Extra,
        }
        $crate::document!(@impls $name { $( $short $field : $ty $(= $default)? ),* });
    };
    (@impls $name:ident { $( $short:literal $field:ident : $ty:ty $(= $default:expr)? ),* }) => {
        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::document!(@default $($default)?), )* extra: Default::default() }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                if serializer.is_human_readable() {
                    let mut map = serializer.serialize_map(None)?;
                    $( map.serialize_entry(stringify!($field), &self.$field)?; )*
                    return map.end();
                }
                let mut length = self.extra.len();
                $( let $field = self.$field != $crate::document!(@typed $ty $(, $default)?); length += usize::from($field); )*
                let mut map = serializer.serialize_map(Some(length))?;
                $( if $field { map.serialize_entry($short, &self.$field)?; } )*
                for (key, value) in self.extra.iter() {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor { readable: bool }
                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a map of ", stringify!($name)))
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut document = $name::default();
                        while let Some($crate::encoding::FieldName(key)) = map.next_key()? {
                            if self.readable {
                                match &*key {
                                    $( stringify!($field) => document.$field = map.next_value()?, )*
                                    // The field is of a newer server; see `is_answer`.
                                    _ if $crate::encoding::is_answer() => {
                                        map.next_value::<serde::de::IgnoredAny>()?;
                                    }
                                    unknown => {
                                        const FIELDS: &[&str] = &[ $( stringify!($field), )* ];
                                        return Err(serde::de::Error::unknown_field(unknown, FIELDS));
                                    }
                                }
                            } else {
                                match &*key {
                                    $( $short => document.$field = map.next_value()?, )*
                                    _ => document.extra.push(key.into_owned(), map.next_value()?),
                                }
                            }
                        }
                        Ok(document)
                    }
                }
                let readable = deserializer.is_human_readable();
                deserializer.deserialize_map(Visitor { readable })
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@typed $ty:ty) => { <$ty as Default>::default() };
    (@typed $ty:ty, $default:expr) => { $default };
}

/// The name of a field, borrowed from the input if it stands there without escapes. Every document has dozens of names,
/// and serde's own `Cow` always makes a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldName<'de>(pub std::borrow::Cow<'de, str>);

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = FieldName<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(FieldName(name.into()))
            }
            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(FieldName(name.to_owned().into()))
            }
            fn visit_string<E>(self, name: String) -> Result<Self::Value, E> {
                Ok(FieldName(name.into()))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

thread_local! {
    static READING_ANSWER: Cell<bool> = const { Cell::new(false) };
}

/// Whether an answer is being read. Requests are read strictly; an answer of a newer server may have fields that this
/// version does not know, and they are ignored.
pub fn is_answer() -> bool {
    READING_ANSWER.get()
}

/// Runs a function that reads an answer; see [`is_answer`].
pub fn read_answer<T>(read: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            READING_ANSWER.set(self.0);
        }
    }
    let _before = Before(READING_ANSWER.replace(true));
    read()
}

/// The text of an answer. JSON is UTF-8; anything else is no answer.
#[doc(hidden)]
pub fn answer_text(answer: &[u8]) -> serde_json::Result<&str> {
    std::str::from_utf8(answer).map_err(serde::de::Error::custom)
}

/// Bytes that are base64 in JSON and raw everywhere else.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Blob(pub bytes::Bytes);

impl Blob {
    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Into<bytes::Bytes>> From<T> for Blob {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl std::ops::Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Shows the size only: payloads may be secret and large.
impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        if serializer.is_human_readable() {
            serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        if deserializer.is_human_readable() {
            let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text.as_bytes())
                .map_err(|error| serde::de::Error::custom(format!("not base64: {error}")))?;
            return Ok(Self(bytes.into()));
        }
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| Self(bytes.into_vec().into()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Blob {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Blob".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "contentEncoding": "base64" })
    }
}

/// A JSON value kept as the very text it came in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonText(pub String);

impl JsonText {
    /// The JSON text of a value.
    pub fn of(value: &impl Serialize) -> Result<Self> {
        serde_json::to_string(value).map(Self).map_err(|error| Error::invalid("input", error))
    }
}

impl Serialize for JsonText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_str(&self.0);
        }
        let raw = serde_json::value::RawValue::from_string(self.0.clone()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return String::deserialize(deserializer).map(Self);
        }
        Box::<serde_json::value::RawValue>::deserialize(deserializer).map(|raw| Self(raw.get().to_owned()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for JsonText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "JsonValue".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "description": "any JSON value, kept as its text" })
    }
}

/// For `Option<JsonText>` fields: an explicit `null` is a value, an absent field is none.
pub fn present_json<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<JsonText>, D::Error> {
    JsonText::deserialize(deserializer).map(Some)
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro declares public structs")]
mod tests {
    use super::*;

    document! {
        /// Today's reader.
        pub struct Today {
            /// A name.
            "n" name: String,
            /// A count with a default of its own.
            "c" count: u32 = 3,
            /// Raw bytes.
            "b" bytes: Blob,
        }
    }
    impl Document for Today {
        const KIND: u8 = b'?';
    }

    document! {
        /// A document as a newer version might write it.
        pub struct Tomorrow {
            /// A name.
            "n" name: String,
            /// Something new.
            "z" zone: String,
        }
    }
    impl Document for Tomorrow {
        const KIND: u8 = b'?';
    }

    #[test]
    fn defaults_cost_nothing() {
        assert_eq!(Today::default().encode(), [SCHEMA, 0x80]);
        let three = Today { count: 3, name: "a".into(), ..Default::default() };
        assert_eq!(three.encode(), [SCHEMA, 0x81, 0xa1, b'n', 0xa1, b'a']);
        assert_eq!(Today::decode(&three.encode()).unwrap(), three);
    }

    #[test]
    fn what_is_encoded_together_reads_as_what_is_encoded_alone() {
        let long = Today { bytes: vec![1; 2 * SCRATCH_MAX_BYTES].into(), ..Default::default() };
        let short = Today { count: 9, ..Default::default() };
        let mut encoded = Encoded::default();
        for document in [&short, &long, &short, &short] {
            assert_eq!(encoded.document(document), document.encode());
            assert_eq!(encoded.record(document), pack(document));
        }
    }

    #[test]
    fn what_a_newer_version_wrote_survives_an_older_one() {
        let newer = Tomorrow { name: "a".into(), zone: "eu".into(), ..Default::default() };
        let mut older = Today::decode(&newer.encode()).unwrap();
        assert_eq!(older.extra.len(), 1);
        older.count = 9;
        let again = Tomorrow::decode(&older.encode()).unwrap();
        assert_eq!((again.name.as_str(), again.zone.as_str()), ("a", "eu"));
    }

    #[test]
    fn bytes_of_every_value_survive() {
        let bytes: Vec<u8> = (0..=255).collect();
        let today = Today { bytes: bytes.into(), ..Default::default() };
        assert_eq!(Today::decode(&today.encode()).unwrap(), today);
        let json = serde_json::to_string(&today).unwrap();
        assert_eq!(serde_json::from_str::<Today>(&json).unwrap(), today);
    }

    #[test]
    fn json_has_the_long_names_and_refuses_unknown_ones() {
        let today: Today = serde_json::from_str(r#"{"name":"a"}"#).unwrap();
        assert_eq!((today.name.as_str(), today.count), ("a", 3));
        let error = serde_json::from_str::<Today>(r#"{"nam":"a"}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `nam`"), "{error}");
    }

    #[test]
    fn a_damaged_or_newer_document_is_an_error_not_a_panic() {
        for bytes in [&[][..], &[0], &[SCHEMA], &[SCHEMA, 0xc1], &[SCHEMA + 1, 0x80]] {
            assert_eq!(Today::decode(bytes).unwrap_err().code, Code::CorruptDocument, "{bytes:?}");
        }
    }

    #[test]
    fn json_text_is_kept_to_the_letter() {
        let text = r#"{"b": 1.0, "a":12345678901234567890123}"#;
        let kept: JsonText = serde_json::from_str(text).unwrap();
        assert_eq!(kept.0, text);
        assert_eq!(serde_json::to_string(&kept).unwrap(), text);
    }
}
