//! `docs/reference.md`: the role that each operation takes, the meaning of every refusal, and the fields of policies. Its tables are written
//! from the code.

use ff_core::op::{OPERATIONS, OperationInfo};
use ff_core::{Class, Code, Role};
use serde_json::Value;

const ROLES: [Role; 6] = [Role::Reader, Role::Submitter, Role::Worker, Role::Approver, Role::Operator, Role::Admin];

const BEGINNING: &str = "\
# Reference

`UPDATE=1 cargo test -p ff-server --test http reference` writes this page from the code, and the same test keeps it true. Arguments and answers
stand in `/openapi.json`.

## Who may call what

An API token has one role in one namespace, or in all. *own*: a submitter may do it to what was submitted with a token of the same name, so that a token that is made anew after a revocation goes on with the work of the old one. *any*: every token may.
A call that carries a fence needs the role `worker` and nothing more; a waitpoint's token needs no API token at all.

";

const POLICY: &str = "
## Policies

A policy says only what it changes; what it leaves out is the default of its namespace (`namespace_defaults` in the configuration), then the
one named here. `ff submit --policy`, `policy` of a request, of a node in a flow file and of a template take the same fields. Unknown ones are refused.

| field | values | meaning |
|---|---|---|
";

/// A row for each field of a policy, with those of its parts under it.
fn policy_rows(schemas: &Value, prefix: &str, schema: &Value, page: &mut String) {
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        policy_rows(schemas, prefix, resolved(schemas, variant), page);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        let inner = resolved(schemas, field);
        let meaning =
            field["description"].as_str().or(inner["description"].as_str()).unwrap_or_default().replace('\n', " ");
        page.push_str(&format!("| `{name}` | {} | {meaning} |\n", values(schemas, field, inner)));
        policy_rows(schemas, &format!("{name}."), inner, page);
        policy_rows(schemas, &format!("{name}[]."), resolved(schemas, &inner["items"]), page);
    }
}

/// The schema behind a reference, and that of a value that may also be null.
fn resolved<'a>(schemas: &'a Value, schema: &'a Value) -> &'a Value {
    let named = |schema: &Value| schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    let name = named(schema).or_else(|| alternatives.into_iter().find_map(named));
    name.map_or(schema, |name| &schemas[name])
}

/// The values that a field takes: its words, or its type with its range and its default.
fn values(schemas: &Value, field: &Value, inner: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut values = match inner["enum"].as_array() {
        Some(words) => words.iter().map(|word| format!("`{}`", text(word))).collect::<Vec<_>>().join(", "),
        None => {
            let types = inner["type"].as_array().cloned().unwrap_or_else(|| vec![inner["type"].clone()]);
            let name = types.iter().find(|name| *name != "null" && !name.is_null()).map_or("object".to_owned(), text);
            if name == "array" { format!("array of {}", values_of_items(schemas, inner)) } else { name }
        }
    };
    if let (Some(least), Some(most)) = (inner["minimum"].as_i64(), inner["maximum"].as_i64()) {
        values.push_str(&format!(", {least} to {most}"));
    }
    if let Some(default) = field.get("default").filter(|default| !default.is_null() && *default != "") {
        values.push_str(&format!("; default {}", text(default)));
    }
    values
}

fn values_of_items(schemas: &Value, array: &Value) -> String {
    resolved(schemas, &array["items"])["type"].as_str().unwrap_or("object").to_owned()
}

fn may(role: Role, info: &OperationInfo) -> &'static str {
    match () {
        () if info.any_role || role.allows(info.role) => "yes",
        () if info.own && role == Role::Submitter => "own",
        () => "",
    }
}

fn page() -> String {
    let mut page = BEGINNING.to_owned();
    page.push_str("| operation | route | reader | submitter | worker | approver | operator | admin | audited |\n");
    page.push_str("|---|---|---|---|---|---|---|---|---|\n");
    for info in OPERATIONS {
        let roles: Vec<&str> = ROLES.into_iter().map(|role| may(role, info)).collect();
        let audited = if info.audited { "yes" } else { "" };
        let route = format!("{} {}", info.method.as_str(), info.path);
        page.push_str(&format!("| `{}` | `{route}` | {} | {audited} |\n", info.name, roles.join(" | ")));
    }
    page.push_str(
        "\n## Refusals\n\nEvery refusal is `application/problem+json` with `code`, `detail`, `details` and `retryable`. A call that is \
         refused has changed nothing, except for one whose details say `\"lease_end\": \"loop_detected\"`: its entries are \
         recorded, and its lease has ended ([governance.md](governance.md)). *again*: the same call may succeed later \
         without any change.\n\n\
         | code | status | class | again | what to do |\n|---|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let class = serde_json::to_value(code.class()).unwrap();
        let again = if code.retryable() { "yes" } else { "" };
        let (status, class) = (code.http_status(), class.as_str().unwrap());
        page.push_str(&format!("| `{code}` | {status} | {class} | {again} | {} |\n", code.advice()));
    }
    page.push_str(POLICY);
    let document: Value = serde_json::from_str(include_str!("../../openapi.json")).unwrap();
    let schemas = &document["components"]["schemas"];
    policy_rows(schemas, "", &schemas["PolicyRequest"], &mut page);
    page.push_str("\n## Exit codes of `ff`\n\n| class | exit code |\n|---|---|\n");
    let classes = [
        Class::Internal,
        Class::Invalid,
        Class::NotFound,
        Class::Conflict,
        Class::Stale,
        Class::Limit,
        Class::Unauthenticated,
        Class::Forbidden,
        Class::Unavailable,
    ];
    for class in classes {
        let name = serde_json::to_value(class).unwrap();
        page.push_str(&format!("| {} | {} |\n", name.as_str().unwrap(), class.exit_code()));
    }
    page
}

#[test]
fn the_page_says_what_the_code_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/reference.md is out of date: run UPDATE=1 cargo test -p ff-server --test http reference"
    );
}
