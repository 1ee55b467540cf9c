//! The JSON Schema of an answer that a suspension waits for: the part of the standard that describes forms. A schema with a
//! keyword that is not understood is refused when it is given, so that an answer is never taken for checked when it was not.

use serde_json::{Map, Number, Value};

use crate::error::{Error, Result};
use crate::limits;

/// Keywords that say something to people and nothing to the check.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "format",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];
/// Keywords that are checked.
const CHECKED: &[&str] = &[
    "$ref",
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
];
const TYPES: &[&str] = &["null", "boolean", "object", "array", "number", "integer", "string"];
/// Schemas inside of schemas, references included.
const DEPTH_MAX: usize = 32;
/// Comparisons one check makes at the most: alternatives multiply.
const STEPS_MAX: usize = 20_000;

/// A schema that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSchema(Value);

impl AnswerSchema {
    /// Reads a schema; refuses what is too large or not understood.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_at("schema", text)
    }

    /// Reads a schema that is sent in another field.
    pub fn parse_at(field: &str, text: &str) -> Result<Self> {
        if text.len() > limits::ANSWER_SCHEMA_MAX_BYTES {
            return Err(Error::too_large(field, text.len(), limits::ANSWER_SCHEMA_MAX_BYTES));
        }
        let root: Value = serde_json::from_str(text).map_err(|error| Error::invalid(field, error))?;
        let schema = Self(root);
        schema.understood(&schema.0, field, 0)?;
        Ok(schema)
    }

    /// Whether it says that its values are objects.
    pub fn is_object(&self) -> bool {
        self.0.get("type") == Some(&Value::from("object"))
    }

    /// Refuses a value that the schema does not allow; says where.
    pub fn check(&self, value: &Value) -> Result<()> {
        self.check_at("payload", value)
    }

    /// Checks a value that is sent in another field.
    pub fn check_at(&self, field: &str, value: &Value) -> Result<()> {
        let mut steps = STEPS_MAX;
        self.fits(&self.0, value, &mut Place { path: field.to_owned(), depth: 0, steps: &mut steps })
            .map_err(|misfit| Error::invalid(&misfit.path, misfit.why))
    }

    fn understood(&self, schema: &Value, path: &str, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::invalid(path, format!("is nested deeper than {DEPTH_MAX} levels")));
        }
        let object = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(object) => object,
            _ => return Err(Error::invalid(path, "must be an object or a boolean")),
        };
        for (keyword, content) in object {
            let place = format!("{path}.{keyword}");
            let refused = |why: &str| Err(Error::invalid(&place, why));
            match keyword.as_str() {
                "$ref" if self.referred(content).is_none() => {
                    return refused("must be the place of another part of this schema, such as #/$defs/name");
                }
                "type" if !is_type(content) => return refused("must be a JSON type or a list of them"),
                "required" if !is_names(content) => return refused("must be a list of names"),
                "enum" if !content.is_array() => return refused("must be a list"),
                "properties" | "$defs" | "definitions" => {
                    let Value::Object(parts) = content else { return refused("must be an object") };
                    for (name, part) in parts {
                        self.understood(part, &format!("{place}.{name}"), depth + 1)?;
                    }
                }
                "anyOf" | "oneOf" | "allOf" | "prefixItems" => {
                    let Value::Array(parts) = content else { return refused("must be a list") };
                    for (number, part) in parts.iter().enumerate() {
                        self.understood(part, &format!("{place}[{number}]"), depth + 1)?;
                    }
                }
                "items" | "additionalProperties" | "not" => self.understood(content, &place, depth + 1)?,
                "uniqueItems" if !content.is_boolean() => return refused("must be true or false"),
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
                    if content.as_u64().is_none() =>
                {
                    return refused("must be a whole number");
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
                    if !content.is_number() =>
                {
                    return refused("must be a number");
                }
                "multipleOf" if content.as_f64().is_none_or(|step| step <= 0.0) => {
                    return refused("must be more than 0");
                }
                known if CHECKED.contains(&known) || ANNOTATIONS.contains(&known) => {}
                _ => return refused("is a keyword that answers cannot be checked against"),
            }
        }
        Ok(())
    }

    /// The part of the schema that a reference names.
    fn referred(&self, reference: &Value) -> Option<&Value> {
        let pointer = reference.as_str()?.strip_prefix('#')?;
        self.0.pointer(pointer)
    }

    fn fits(&self, schema: &Value, value: &Value, place: &mut Place<'_>) -> Fit {
        place.step()?;
        let object = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(object) => object,
            _ => return place.misfit("nothing is allowed here"),
        };
        if let Some(other) = object.get("$ref").and_then(|reference| self.referred(reference)) {
            place.inside(String::new(), |place| self.fits(other, value, place))?;
        }
        if object.get("type").is_some_and(|wanted| !has_type(wanted, value)) {
            return place.misfit(format!("must be {}", named_types(&object["type"])));
        }
        if let Some(Value::Array(allowed)) = object.get("enum")
            && !allowed.iter().any(|one| same(one, value))
        {
            return place.misfit(format!("must be one of {}", Value::from(allowed.clone())));
        }
        if object.get("const").is_some_and(|only| !same(only, value)) {
            return place.misfit(format!("must be {}", object["const"]));
        }
        self.combinations(object, value, place)?;
        match value {
            Value::Object(fields) => self.fields(object, fields, place),
            Value::Array(items) => self.items(object, items, place),
            Value::String(text) => count(object, ("minLength", "maxLength"), text.chars().count(), "characters", place),
            Value::Number(number) => range(object, number, place),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    fn combinations(&self, object: &Map<String, Value>, value: &Value, place: &mut Place<'_>) -> Fit {
        let parts = |keyword: &str| object.get(keyword).and_then(Value::as_array).map(Vec::as_slice);
        for part in parts("allOf").unwrap_or_default() {
            place.inside(String::new(), |place| self.fits(part, value, place))?;
        }
        let matching = |parts: &[Value], place: &mut Place<'_>| -> Result<usize, Misfit> {
            let mut fitting = 0;
            for part in parts {
                match place.inside(String::new(), |place| self.fits(part, value, place)) {
                    Ok(()) => fitting += 1,
                    Err(misfit) if misfit.exhausted => return Err(misfit),
                    Err(_) => {}
                }
            }
            Ok(fitting)
        };
        if let Some(parts) = parts("anyOf")
            && matching(parts, place)? == 0
        {
            return place.misfit("fits none of the alternatives");
        }
        if let Some(parts) = parts("oneOf")
            && matching(parts, place)? != 1
        {
            return place.misfit("must fit exactly one of the alternatives");
        }
        if let Some(excluded) = object.get("not")
            && matching(std::slice::from_ref(excluded), place)? == 1
        {
            return place.misfit("is what must not be here");
        }
        Ok(())
    }

    fn fields(&self, object: &Map<String, Value>, fields: &Map<String, Value>, place: &mut Place<'_>) -> Fit {
        for name in object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                return place.inside(format!(".{name}"), |place| place.misfit("must be given"));
            }
        }
        count(object, ("minProperties", "maxProperties"), fields.len(), "fields", place)?;
        let known = object.get("properties").and_then(Value::as_object);
        for (name, value) in fields {
            let part = known.and_then(|known| known.get(name)).or_else(|| object.get("additionalProperties"));
            if let Some(part) = part {
                place.inside(format!(".{name}"), |place| match part {
                    Value::Bool(false) => place.misfit("is a field that the answer does not have"),
                    part => self.fits(part, value, place),
                })?;
            }
        }
        Ok(())
    }

    fn items(&self, object: &Map<String, Value>, items: &[Value], place: &mut Place<'_>) -> Fit {
        count(object, ("minItems", "maxItems"), items.len(), "items", place)?;
        let first = object.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (number, item) in items.iter().enumerate() {
            if let Some(part) = first.get(number).or_else(|| object.get("items")) {
                place.inside(format!("[{number}]"), |place| self.fits(part, item, place))?;
            }
        }
        if object.get("uniqueItems") == Some(&Value::Bool(true)) {
            for (number, item) in items.iter().enumerate() {
                place.steps(number)?;
                if items[..number].iter().any(|earlier| same(earlier, item)) {
                    return place.inside(format!("[{number}]"), |place| place.misfit("is there twice"));
                }
            }
        }
        Ok(())
    }
}

type Fit = Result<(), Misfit>;

/// A mismatch between a value and the schema, and its place.
struct Misfit {
    path: String,
    why: String,
    /// The check gave up: no alternative may hide that.
    exhausted: bool,
}

/// Where in the value a check is, and how much of it is left.
struct Place<'a> {
    path: String,
    depth: usize,
    steps: &'a mut usize,
}

impl Place<'_> {
    fn misfit<T>(&self, why: impl Into<String>) -> Result<T, Misfit> {
        Err(Misfit { path: self.path.clone(), why: why.into(), exhausted: false })
    }

    fn step(&mut self) -> Fit {
        self.steps(1)
    }

    fn steps(&mut self, taken: usize) -> Fit {
        *self.steps = self.steps.saturating_sub(taken);
        if *self.steps == 0 || self.depth > DEPTH_MAX {
            let why = "takes too long to check against the schema".to_owned();
            return Err(Misfit { path: self.path.clone(), why, exhausted: true });
        }
        Ok(())
    }

    fn inside<T>(
        &mut self,
        part: String,
        check: impl FnOnce(&mut Place<'_>) -> Result<T, Misfit>,
    ) -> Result<T, Misfit> {
        let path = format!("{}{part}", self.path);
        check(&mut Place { path, depth: self.depth + 1, steps: self.steps })
    }
}

fn count(object: &Map<String, Value>, (least, most): (&str, &str), found: usize, what: &str, place: &Place<'_>) -> Fit {
    let bound = |keyword: &str| object.get(keyword).and_then(Value::as_u64);
    let found = u64::try_from(found).unwrap_or(u64::MAX);
    if let Some(least) = bound(least).filter(|least| found < *least) {
        return place.misfit(format!("must have at least {least} {what}"));
    }
    if let Some(most) = bound(most).filter(|most| found > *most) {
        return place.misfit(format!("must have at most {most} {what}"));
    }
    Ok(())
}

fn range(object: &Map<String, Value>, number: &Number, place: &Place<'_>) -> Fit {
    let bound = |keyword: &str| object.get(keyword).and_then(Value::as_f64);
    let Some(found) = number.as_f64() else { return place.misfit("is no number that can be compared") };
    let broken = [
        bound("minimum").filter(|bound| found < *bound).map(|bound| format!("must be at least {bound}")),
        bound("maximum").filter(|bound| found > *bound).map(|bound| format!("must be at most {bound}")),
        bound("exclusiveMinimum").filter(|bound| found <= *bound).map(|bound| format!("must be more than {bound}")),
        bound("exclusiveMaximum").filter(|bound| found >= *bound).map(|bound| format!("must be less than {bound}")),
        bound("multipleOf").filter(|step| !divides(found, *step)).map(|step| format!("must be a multiple of {step}")),
    ];
    broken.into_iter().flatten().next().map_or(Ok(()), |why| place.misfit(why))
}

/// Decimal fractions are not exact in binary, so a quotient very near a whole number counts as one.
fn divides(found: f64, step: f64) -> bool {
    let quotient = found / step;
    (quotient - quotient.round()).abs() <= quotient.abs().max(1.0) * 1e-9
}

/// 1 and 1.0 are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}

fn names(wanted: &Value) -> Vec<&str> {
    match wanted {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn is_type(wanted: &Value) -> bool {
    let names = names(wanted);
    let all = wanted.as_array().is_none_or(|several| several.len() == names.len());
    all && !names.is_empty() && names.iter().all(|name| TYPES.contains(name))
}

fn is_names(content: &Value) -> bool {
    content.as_array().is_some_and(|names| names.iter().all(Value::is_string))
}

fn named_types(wanted: &Value) -> String {
    names(wanted).join(" or ")
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    names(wanted).iter().any(|name| match (*name, value) {
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_)) => true,
        ("integer", Value::Number(number)) => {
            number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: &Value, value: &Value) -> Option<String> {
        let schema = AnswerSchema::parse(&schema.to_string()).unwrap();
        schema.check(value).err().map(|error| error.details["field"].as_str().unwrap().to_owned())
    }

    #[test]
    fn an_answer_fits_or_the_place_that_does_not_is_named() {
        let schema = json!({
            "title": "Refund", "type": "object", "required": ["amount"], "additionalProperties": false,
            "properties": {
                "amount": { "type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01 },
                "why": { "$ref": "#/$defs/why" },
                "tags": { "type": "array", "items": { "type": "string", "maxLength": 3 }, "uniqueItems": true },
                "to": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            },
            "$defs": { "why": { "enum": ["late", "broken"] } },
        });
        for fine in [json!({ "amount": 7 }), json!({ "amount": 0.29, "why": "late", "tags": ["a", "b"], "to": null })] {
            assert_eq!(refused(&schema, &fine), None, "{fine}");
        }
        for (wrong, field) in [
            (json!(null), "payload"),
            (json!({}), "payload.amount"),
            (json!({ "amount": "7" }), "payload.amount"),
            (json!({ "amount": 101 }), "payload.amount"),
            (json!({ "amount": 0.001 }), "payload.amount"),
            (json!({ "amount": 1, "why": "bored" }), "payload.why"),
            (json!({ "amount": 1, "more": 1 }), "payload.more"),
            (json!({ "amount": 1, "tags": ["a", "long"] }), "payload.tags[1]"),
            (json!({ "amount": 1, "tags": ["a", "a"] }), "payload.tags[1]"),
            (json!({ "amount": 1, "to": 1 }), "payload.to"),
        ] {
            assert_eq!(refused(&schema, &wrong).as_deref(), Some(field), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_before_anybody_answers() {
        for (schema, field) in [
            (json!({ "pattern": "^a" }), "schema.pattern"),
            (json!({ "properties": { "a": { "type": "text" } } }), "schema.properties.a.type"),
            (json!({ "$ref": "#/$defs/none" }), "schema.$ref"),
            (json!({ "$ref": "https://example.com/schema" }), "schema.$ref"),
            (json!({ "minLength": -1 }), "schema.minLength"),
            (json!([]), "schema"),
        ] {
            let error = AnswerSchema::parse(&schema.to_string()).unwrap_err();
            assert_eq!(error.details["field"], field, "{error}");
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_or_multiplies_ends() {
        let endless = json!({ "$ref": "#" });
        assert!(refused(&endless, &json!(1)).is_some());
        let tree = json!({ "type": "object", "properties": { "next": { "$ref": "#" } } });
        assert_eq!(refused(&tree, &json!({ "next": { "next": {} } })), None);
        let mut wide = json!({ "type": "string" });
        for _ in 0..12 {
            wide = json!({ "oneOf": [wide, wide, wide] });
        }
        if let Ok(schema) = AnswerSchema::parse(&wide.to_string()) {
            assert!(schema.check(&json!(1)).is_err());
        }
    }
}
