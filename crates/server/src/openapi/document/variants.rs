//! Unions in a form that generators of clients understand. They name a type after its schema, so that a variant that
//! stands inside of a union has no name, or one that another has, too. Here each gets a schema of its own.

use serde_json::{Map, Value, json};

use super::SCHEMAS;

/// Marks a variant with its union. A generator that sees the union as one type with the fields of all leaves it out.
const VARIANT_OF: &str = "x-variant-of";

/// Names the variants of all unions. Words without fields become an enumeration.
pub(super) fn name_all(schemas: &mut Map<String, Value>) {
    let unions: Vec<String> =
        schemas.iter().filter(|(_, schema)| schema["oneOf"].is_array()).map(|(name, _)| name.clone()).collect();
    for name in unions {
        let Some(Value::Object(mut union)) = schemas.get(&name).cloned() else { continue };
        let Some(Value::Array(variants)) = union.remove("oneOf") else { continue };
        let (words, shapes): (Vec<Value>, Vec<Value>) = variants.into_iter().partition(is_word);
        let shapes: Vec<Map<String, Value>> = shapes.into_iter().map(in_parts).collect();
        match (words.as_slice(), shapes.as_slice()) {
            (words, []) => {
                describe_words(&mut union, words);
                union.insert("type".into(), "string".into());
                union.insert("enum".into(), texts(words));
            }
            ([], [only]) => {
                let described = union.remove("description");
                union.extend(only.clone());
                union.extend(described.map(|text| ("description".to_owned(), text)));
            }
            _ => {
                describe_words(&mut union, &words);
                let mut references = refer(&name, shapes, schemas, &mut union);
                if !words.is_empty() {
                    references.push(json!({ "type": "string", "enum": texts(&words) }));
                }
                union.insert("oneOf".into(), Value::Array(references));
            }
        }
        schemas.insert(name, Value::Object(union));
    }
}

fn is_word(variant: &Value) -> bool {
    variant["const"].is_string()
}

fn texts(words: &[Value]) -> Value {
    words.iter().map(|word| word["const"].clone()).collect()
}

/// An enumeration has one description for all its words.
fn describe_words(union: &mut Map<String, Value>, words: &[Value]) {
    let mut text = union.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for word in words {
        if let (Some(word), Some(meaning)) = (word["const"].as_str(), word["description"].as_str()) {
            let between = if text.contains("\n* ") { "\n" } else { "\n\n" };
            text.push_str(&format!("{between}* `{word}`: {meaning}"));
        }
    }
    union.insert("description".into(), text.into());
}

/// A variant in which what it stands on and what it adds are parts: not every generator reads what stands beside a
/// reference.
fn in_parts(variant: Value) -> Map<String, Value> {
    let Value::Object(mut variant) = variant else { return Map::new() };
    let Some(base) = variant.remove("$ref") else { return variant };
    let described = variant.remove("description");
    let mut parts = Map::new();
    parts.insert("allOf".into(), json!([{ "$ref": base }, variant]));
    parts.extend(described.map(|text| ("description".to_owned(), text)));
    parts
}

/// Gives each variant a schema, and the references to them; says which field tells them apart, where one does.
fn refer(
    union_name: &str,
    shapes: Vec<Map<String, Value>>,
    schemas: &mut Map<String, Value>,
    union: &mut Map<String, Value>,
) -> Vec<Value> {
    let mut references = Vec::new();
    let (mut tag_name, mut mapping) = (None, Map::new());
    for mut shape in shapes {
        let tag = tag(&shape);
        let name = match &tag {
            Some((_, word)) => format!("{union_name}{}", in_capitals(word)),
            None => format!("{union_name}Of{}", in_capitals(only_field(&shape))),
        };
        let path = format!("#{SCHEMAS}/{name}");
        references.push(json!({ "$ref": path }));
        if let Some((field, word)) = tag {
            tag_name = Some(field);
            mapping.insert(word, path.into());
        }
        shape.insert(VARIANT_OF.into(), union_name.into());
        let before = schemas.insert(name, Value::Object(shape));
        assert!(before.is_none(), "a variant of {union_name} has the name of another schema");
    }
    if let Some(tag_name) = tag_name.filter(|_| mapping.len() == references.len()) {
        union.insert("discriminator".into(), json!({ "propertyName": tag_name, "mapping": mapping }));
    }
    references
}

/// The field with one possible value, and that value.
fn tag(shape: &Map<String, Value>) -> Option<(String, String)> {
    let own = shape.get("properties").or_else(|| shape.get("allOf")?.get(1)?.get("properties"))?;
    own.as_object()?.iter().find_map(|(name, schema)| Some((name.clone(), schema["const"].as_str()?.to_owned())))
}

fn only_field(shape: &Map<String, Value>) -> &str {
    shape.get("required").and_then(|fields| fields[0].as_str()).unwrap_or_default()
}

fn in_capitals(words: &str) -> String {
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    words.split('_').filter(|word| !word.is_empty()).map(capital).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_a_name_and_words_are_an_enumeration() {
        let kept = json!({ "type": "object", "properties": { "id": { "type": "string" } }, "required": ["id"] });
        let tagged =
            |word: &str| json!({ "type": "object", "properties": { "is": { "const": word } }, "required": ["is"] });
        let mut standing = tagged("kept_on");
        standing["$ref"] = json!("#/components/schemas/Kept");
        let Value::Object(mut schemas) = json!({
            "Kept": kept,
            "Colour": { "description": "A colour.", "oneOf": [{ "const": "red", "description": "Warm." }] },
            "Answer": { "description": "An answer.", "oneOf": [standing, tagged("gone")] },
            "Only": { "description": "One.", "oneOf": [tagged("done")] },
            "Choice": { "oneOf": [
                { "const": "all" },
                { "type": "object", "properties": { "some": { "type": "integer" } }, "required": ["some"] },
            ] },
        }) else {
            unreachable!()
        };
        name_all(&mut schemas);
        assert_eq!(schemas["Colour"]["enum"], json!(["red"]));
        assert_eq!(schemas["Colour"]["description"], "A colour.\n\n* `red`: Warm.");
        let mapping = json!({
            "kept_on": "#/components/schemas/AnswerKeptOn", "gone": "#/components/schemas/AnswerGone",
        });
        assert_eq!(schemas["Answer"]["discriminator"], json!({ "propertyName": "is", "mapping": mapping }));
        assert_eq!(schemas["AnswerKeptOn"]["allOf"][0]["$ref"], "#/components/schemas/Kept");
        assert_eq!(schemas["AnswerKeptOn"]["allOf"][1]["required"], json!(["is"]));
        assert_eq!((&schemas["Only"]["required"], &schemas["Only"]["description"]), (&json!(["is"]), &json!("One.")));
        assert_eq!(schemas["Choice"]["oneOf"][0]["$ref"], "#/components/schemas/ChoiceOfSome");
        assert_eq!(schemas["Choice"]["oneOf"][1]["enum"], json!(["all"]));
        assert_eq!(schemas["ChoiceOfSome"][VARIANT_OF], "Choice");
    }
}
