//! Path, query, headers and body of a request, merged into the one JSON text that an operation's arguments are read
//! from. Values stay the texts they came in: a number or a string in an input survives to the letter.

#[cfg(test)]
mod fuzz;
mod shape;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use ff_core::encoding::FieldName;
use ff_core::op::Operation;
use ff_core::{Code, Error, Result, text};
use hyper::HeaderMap;
use percent_encoding::percent_decode_str;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use shape::Kind;
pub(crate) use shape::Shape;

/// The body of a request, by its content type.
#[derive(Debug)]
pub(crate) enum Sent {
    /// There was none.
    Nothing,
    /// A JSON object.
    Json(bytes::Bytes),
    /// The bytes of the operation's one field of bytes.
    Raw(bytes::Bytes),
}

/// Everything a request says.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) path: &'a [(&'static str, String)],
    pub(crate) query: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Sent,
}

/// Words for waits and limits that some operations had of their own, and what they are called now. Arguments read both.
const OLD_WORDS: [(&str, &str); 2] = [("block_ms", "wait_ms"), ("count", "limit")];

/// Merges a request into one JSON object.
pub(crate) fn merge(shape: &Shape, operation: &str, request: Request<'_>) -> Result<String> {
    if let Some(text) = body_alone(shape, &request) {
        return Ok(text);
    }
    let mut fields = match request.body {
        Sent::Nothing => Fields::default(),
        Sent::Json(body) => read_object(&body)?,
        Sent::Raw(body) => {
            let Some(field) = shape.bytes() else {
                return Err(Error::of(Code::UnsupportedMediaType));
            };
            let text = base64::engine::general_purpose::STANDARD.encode(&body);
            Fields(BTreeMap::from([(field.to_owned(), raw_text(&text)?)]))
        }
    };
    for (name, values) in query(request.query)? {
        let old = OLD_WORDS.iter().find(|(old, new)| *old == name && !shape.has(old) && shape.has(new));
        let kind = shape.kind(old.map_or(name.as_str(), |(_, new)| new)).unwrap_or(&Kind::Text);
        fields.add(&name, value(&name, kind, &values)?)?;
    }
    for (name, text) in request.path {
        let kind = shape.kind(name).unwrap_or(&Kind::Text);
        fields.add(name, value(name, kind, std::slice::from_ref(text))?)?;
    }
    if let Some(key) = header(request.headers, "idempotency-key")? {
        identify(&mut fields, shape, operation, &key)?;
    }
    if shape.has("trace_context")
        && !fields.0.contains_key("trace_context")
        && let Some(context) = header(request.headers, "traceparent")?
    {
        fields.add("trace_context", raw_text(&context)?)?;
    }
    Ok(fields.text())
}

/// The text of a body that says everything, as most do: it is looked through once and taken as it is. A body that is
/// refused gets `None`, too, and its refusal from the fields one by one.
fn body_alone(shape: &Shape, request: &Request<'_>) -> Option<String> {
    let Sent::Json(body) = &request.body else { return None };
    let named = |header: &str| request.headers.contains_key(header);
    let elsewhere = !request.path.is_empty()
        || !request.query.is_empty()
        || (shape.identity().is_some() && named("idempotency-key"))
        || (shape.has("trace_context") && named("traceparent"));
    if elsewhere || body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?;
    serde_json::from_str::<Unambiguous>(text).ok()?;
    Some(text.to_owned())
}

/// The arguments of an operation from their JSON text.
pub(crate) fn parse<O: Operation>(shape: &Shape, text: &str) -> Result<O::Args> {
    // The way to every value is only kept for a refusal, which names one: it is most of the price of reading.
    O::from_text(text).map_err(|error| refuse(shape, (O::NAME, O::UNREADABLE), text, &error))
}

fn refuse(shape: &Shape, (operation, code): (&str, Code), text: &str, error: &serde_json::Error) -> Error {
    let located = ff_mistakes::locate(operation, text);
    let (path, message) =
        located.map_or_else(|| (".".to_owned(), error.to_string()), |mistake| (mistake.path, mistake.message));
    let message = without_position(&message);
    let named = |what: &str| message.strip_prefix(what).and_then(|rest| rest.split('`').next());
    let (missing, unknown) = (named("missing field `"), named("unknown field `"));
    let field = match (path.as_str(), missing.or(unknown)) {
        (".", Some(field)) => field.to_owned(),
        // The error is about the arguments as a whole.
        (".", None) => "body".to_owned(),
        // A missing field has no place of its own, and the way to a value ends where one of its fields tells its kind.
        (path, Some(field)) if missing.is_some() || path.rsplit('.').next() != Some(field) => format!("{path}.{field}"),
        (path, _) => path.to_owned(),
    };
    let mut refusal = Error::new(code, message.clone()).with("field", &field);
    if unknown.is_some() {
        // A field inside of another one is compared with those of its own object, which the message names.
        let nested = field.contains(['.', '[']);
        let valid = if nested { expected_names(&message) } else { shape.names().map(str::to_owned).collect() };
        refusal = refusal.with("valid", valid);
    }
    refusal
}

/// The names that a message about an unknown field says it expected.
fn expected_names(message: &str) -> Vec<String> {
    let expected = message.split_once("expected").map(|(_, expected)| expected).unwrap_or_default();
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The caller's own name for this very call.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>> {
    let key = header(headers, "idempotency-key")?;
    key.as_deref().map_or(Ok(()), |key| text::label("Idempotency-Key", key))?;
    Ok(key)
}

/// Puts an `Idempotency-Key` into the field that the arguments have for it.
fn identify(fields: &mut Fields, shape: &Shape, operation: &str, key: &str) -> Result<()> {
    // The engine gives every other call the identity that its key is, or the leases of a claim.
    let Some(field) = shape.identity() else { return Ok(()) };
    let wanted = match field {
        "command_id" => raw_text(&command_id(operation, key))?,
        _ => raw_text(key)?,
    };
    match fields.0.get(field) {
        // A field that is null is one that says nothing.
        Some(given) if given.get() != "null" && !same(given, &wanted) => {
            Err(Error::invalid("Idempotency-Key", format!("differs from {field} in the request")))
        }
        _ => {
            fields.0.insert(field.to_owned(), wanted);
            Ok(())
        }
    }
}

/// Command ids are UUIDs; any other key gets the one that is derived from it.
fn command_id(operation: &str, key: &str) -> String {
    if let Ok(id) = key.parse::<uuid::Uuid>() {
        return id.to_string();
    }
    let digest = Sha256::new().chain_update(operation).chain_update([0]).chain_update(key).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

/// Fields by name, as texts.
#[derive(Debug, Default)]
struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    /// Adds a field. A second place may repeat it, but not say something else.
    fn add(&mut self, name: &str, value: Box<RawValue>) -> Result<()> {
        match self.0.get(name) {
            Some(given) if !same(given, &value) => {
                Err(Error::invalid(name, "is given twice in the request, differently"))
            }
            Some(_) => Ok(()),
            None => {
                self.0.insert(name.to_owned(), value);
                Ok(())
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("{");
        for (number, (name, value)) in self.0.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            text.push_str(&serde_json::Value::from(name.as_str()).to_string());
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text
    }
}

/// A name given twice is refused: the server cannot know which of the two is meant.
impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if let Some(_earlier) = fields.insert(name.clone(), value) {
                        return Err(serde::de::Error::custom(format!("field `{name}` is given twice")));
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

fn read_object(body: &[u8]) -> Result<Fields> {
    let refused =
        |error| Error::new(Code::Invalid, format!("the body is not a JSON object: {error}")).with("field", "body");
    let fields: Fields = serde_json::from_slice(body).map_err(refused)?;
    for (name, value) in fields.0.iter().filter(|(name, _)| !PAYLOADS.contains(&name.as_str())) {
        serde_json::from_str::<Unambiguous>(value.get())
            .map_err(|error| Error::new(Code::Invalid, without_position(&error.to_string())).with("field", name))?;
    }
    Ok(fields)
}

/// Values that are passed on as they came: what is in them is not ours to judge.
const PAYLOADS: &[&str] = &["input", "payload", "result", "continuation"];

/// The names of an object. Among a few one is found faster by looking; an object of a stranger may have many.
#[derive(Default)]
struct Names<'de> {
    few: Vec<Cow<'de, str>>,
    many: BTreeSet<Cow<'de, str>>,
}

impl<'de> Names<'de> {
    const FEW: usize = 32;

    /// Takes in a name; gives back one that is there already.
    fn add(&mut self, name: Cow<'de, str>) -> std::result::Result<(), Cow<'de, str>> {
        if self.few.contains(&name) || self.many.contains(&name) {
            return Err(name);
        }
        if self.few.len() < Self::FEW {
            self.few.push(name);
        } else {
            self.many.insert(name);
        }
        Ok(())
    }
}

/// A value in which no object has a name twice.
struct Unambiguous;

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut names = Names::default();
        while let Some(FieldName(name)) = map.next_key::<FieldName<'de>>()? {
            if PAYLOADS.contains(&&*name) {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value::<Self>()?;
            }
            if let Err(name) = names.add(name) {
                return Err(serde::de::Error::custom(format!("field `{name}` is given twice")));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// The parameters of a query, in order of their names; a repeated one has several values.
fn query(query: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut parameters: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        parameters.entry(decode_form(name)?).or_default().push(decode_form(value)?);
    }
    Ok(parameters)
}

fn decode_form(text: &str) -> Result<String> {
    decode(&text.replace('+', " "))
}

/// Undoes percent-encoding.
pub(crate) fn decode(text: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| Error::invalid("url", "is not percent-encoded UTF-8"))
}

/// The JSON text of a parameter. One that does not fit its kind becomes a string, which its field then refuses by name.
fn value(name: &str, kind: &Kind, values: &[String]) -> Result<Box<RawValue>> {
    match (kind, values) {
        (Kind::List(item), values) => {
            let items = values.iter().map(|text| single(item, text)).collect::<Result<Vec<_>>>()?;
            let texts: Vec<&str> = items.iter().map(|item| item.get()).collect();
            raw(format!("[{}]", texts.join(",")))
        }
        (kind, [text]) => single(kind, text),
        _ => Err(Error::invalid(name, "is given more than once")),
    }
}

fn single(kind: &Kind, text: &str) -> Result<Box<RawValue>> {
    let plain = match kind {
        Kind::Text => false,
        Kind::Number => text.starts_with(|first: char| first == '-' || first.is_ascii_digit()),
        Kind::Switch => text == "true" || text == "false",
        Kind::List(_) | Kind::Json => true,
    };
    match RawValue::from_string(text.to_owned()) {
        Ok(value) if plain => Ok(value),
        _ => raw_text(text),
    }
}

fn raw(text: String) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| Error::new(Code::Internal, format!("a merged value: {error}")))
}

fn raw_text(text: &str) -> Result<Box<RawValue>> {
    raw(serde_json::Value::from(text).to_string())
}

fn same(one: &RawValue, other: &RawValue) -> bool {
    let value = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    one.get() == other.get() || value(one).is_some_and(|first| value(other) == Some(first))
}

fn header(headers: &HeaderMap, name: &'static str) -> Result<Option<String>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().map_err(|_| Error::invalid(name, "must be visible ASCII"))?;
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

fn without_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(text, _)| text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ff_core::op::{self, OperationInfo};

    fn merged<O: Operation>(query: &str, headers: &[(&'static str, &str)], body: Sent) -> Result<String> {
        let shape = Shape::of(&OperationInfo::of::<O>());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        merge(&shape, O::NAME, Request { path: &[], query, headers: &map, body })
    }

    fn json(text: &'static str) -> Sent {
        Sent::Json(bytes::Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn numbers_and_texts_of_an_input_survive_to_the_letter() {
        let body = r#"{"kind": "k", "input": {"n": 1.10, "big": 123456789012345678901234567890, "a": "\u00e9"}}"#;
        let text = merged::<op::CreateExecution>("", &[], json(body)).unwrap();
        assert!(text.contains(r#"{"n": 1.10, "big": 123456789012345678901234567890, "a": "\u00e9"}"#), "{text}");
        let shape = Shape::of(&OperationInfo::of::<op::CreateExecution>());
        let args = parse::<op::CreateExecution>(&shape, &text).unwrap();
        let input = args.input().unwrap().unwrap();
        assert_eq!(&input.bytes[..], &br#"{"n": 1.10, "big": 123456789012345678901234567890, "a": "\u00e9"}"#[..]);
    }

    #[test]
    fn a_name_given_twice_is_refused() {
        assert_eq!(merged::<op::GetState>("", &[], json(r#"{"a":1,"a":2}"#)).unwrap_err().code, Code::Invalid);
        assert_eq!(merged::<op::GetState>("a=1&a=2", &[], Sent::Nothing).unwrap_err().code, Code::Invalid);
        assert_eq!(merged::<op::GetState>("a=1", &[], json(r#"{"a":"2"}"#)).unwrap_err().code, Code::Invalid);
        assert!(merged::<op::GetState>("a=1", &[], json(r#"{"a":"1"}"#)).is_ok());
        let nested = merged::<op::CreateExecution>("", &[], json(r#"{"tags":{"a":"1","a":"2"}}"#)).unwrap_err();
        assert_eq!((nested.code, &nested.details["field"]), (Code::Invalid, &"tags".into()));
        // A value that is only passed on may be as odd as its sender likes.
        let inside = json(r#"{"frames":[{"payload":{"a":1,"a":2}}],"input":{"b":1,"b":2}}"#);
        assert!(merged::<op::CreateExecution>("", &[], inside).is_ok());
    }

    #[test]
    fn a_body_that_says_everything_is_taken_as_it_is_and_refused_as_any_other() {
        let text = " {\"kind\": \"a\", \"tags\": {\"b\": \"\\u0063\"}} ";
        assert_eq!(merged::<op::CreateExecution>("", &[], json(text)).unwrap(), text);
        // The same with something beside it is put together, and means the same.
        let merged_text = merged::<op::CreateExecution>("priority=3", &[], json(text)).unwrap();
        let shape = Shape::of(&OperationInfo::of::<op::CreateExecution>());
        let alone = parse::<op::CreateExecution>(&shape, text).unwrap();
        let args = parse::<op::CreateExecution>(&shape, &merged_text).unwrap();
        assert_eq!((args.kind, args.tags, args.priority), (alone.kind, alone.tags, Some(3)));
        let refused = |text| merged::<op::CreateExecution>("", &[], json(text)).unwrap_err().details["field"].clone();
        assert_eq!(refused("[]"), "body");
        assert_eq!(refused(r#"{"kind":"a"} {}"#), "body");
        assert_eq!(refused(r#"{"kind":"a","\u006bind":"b"}"#), "body");
        assert_eq!(refused(r#"{"tags":{"a":"1","\u0061":"2"}}"#), "tags");
        let not_utf8 = Sent::Json(bytes::Bytes::from_static(b"{\"kind\":\"a\",\"input\":\"\xff\"}"));
        assert_eq!(merged::<op::CreateExecution>("", &[], not_utf8).unwrap_err().code, Code::Invalid);
        let many: Vec<String> = (0..100).map(|number| format!("\"t{}\":\"v\"", number % 99)).collect();
        let many = Sent::Json(format!("{{\"tags\":{{{}}}}}", many.join(",")).into());
        assert_eq!(merged::<op::CreateExecution>("", &[], many).unwrap_err().details["field"], "tags");
    }

    #[test]
    fn an_idempotency_key_is_the_operations_own_identity() {
        let headers = [("idempotency-key", "k1")];
        let text = merged::<op::CreateExecution>("", &headers, json(r#"{"kind":"a"}"#)).unwrap();
        assert!(text.contains(r#""idempotency_key":"k1""#), "{text}");
        let differs = merged::<op::CreateExecution>("", &headers, json(r#"{"idempotency_key":"k2"}"#));
        assert_eq!(differs.unwrap_err().code, Code::Invalid);
        let absent = merged::<op::CreateExecution>("", &headers, json(r#"{"idempotency_key": null}"#)).unwrap();
        assert!(absent.contains(r#""idempotency_key":"k1""#), "{absent}");
        let first = merged::<op::ReplayExecution>("", &headers, Sent::Nothing).unwrap();
        assert_eq!(first, merged::<op::ReplayExecution>("", &headers, Sent::Nothing).unwrap());
        assert!(first.contains("command_id"), "{first}");
        assert_eq!(merged::<op::CreateExecutions>("", &headers, json("{}")).unwrap(), "{}");
    }

    #[test]
    fn a_raw_body_fills_the_field_of_bytes() {
        let raw = Sent::Raw(bytes::Bytes::from_static(b"\x00\xff"));
        let text = merged::<op::CreateExecution>("kind=a&priority=3", &[], raw).unwrap();
        assert_eq!(text, r#"{"input_base64":"AP8=","kind":"a","priority":3}"#);
        let refused = merged::<op::GetState>("", &[], Sent::Raw(bytes::Bytes::new())).unwrap_err();
        assert_eq!(refused.code, Code::UnsupportedMediaType);
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_field() {
        let shape = Shape::of(&OperationInfo::of::<op::CreateExecution>());
        let field = |text: &str| parse::<op::CreateExecution>(&shape, text).unwrap_err().details["field"].clone();
        assert_eq!(field(r#"{"priority":"x","kind":"a"}"#), "priority");
        assert_eq!(field(r#"{"nonsense":1,"kind":"a"}"#), "nonsense");
        assert_eq!(field("{}"), "kind");
        let schedule = Shape::of(&OperationInfo::of::<op::CreateSchedule>());
        let text = r#"{"name":"nightly","spec":{"cron":"0 3 * * *","zone":"UTC"}}"#;
        let refused = parse::<op::CreateSchedule>(&schedule, text).unwrap_err();
        assert_eq!(refused.details["field"], "spec.zone", "{refused:?}");
        assert!(refused.details["valid"].as_array().unwrap().contains(&"time_zone".into()), "{refused:?}");
        let filter = Shape::of(&OperationInfo::of::<op::ListExecutions>());
        let refused = parse::<op::ListExecutions>(&filter, r#"{"colour":"red"}"#).unwrap_err();
        assert_eq!(refused.code, Code::InvalidFilter);
        assert!(refused.details["valid"].as_array().unwrap().contains(&"lane".into()), "{refused:?}");
    }
}
