//! `docs/reference.md`: the role that each operation takes, and the meaning of every refusal. Its tables are written
//! from the code.

use ff_core::op::{OPERATIONS, OperationInfo};
use ff_core::{Class, Code, Role};

const ROLES: [Role; 6] = [Role::Reader, Role::Submitter, Role::Worker, Role::Approver, Role::Operator, Role::Admin];

const BEGINNING: &str = "\
# Reference

`UPDATE=1 cargo test -p ff-server --test http reference` writes this page from the code, and the same test keeps it true. Arguments and answers
stand in `/openapi.json`.

## Who may call what

An API token has one role in one namespace, or in all. *own*: a submitter may do it to what it submitted with the same token. *any*: every token may.
A call that carries a fence needs the role `worker` and nothing more; a waitpoint's token needs no API token at all.

";

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
         refused has changed nothing. *again*: the same call may succeed later without any change.\n\n\
         | code | status | class | again | what to do |\n|---|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let class = serde_json::to_value(code.class()).unwrap();
        let again = if code.retryable() { "yes" } else { "" };
        let (status, class) = (code.http_status(), class.as_str().unwrap());
        page.push_str(&format!("| `{code}` | {status} | {class} | {again} | {} |\n", code.advice()));
    }
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
