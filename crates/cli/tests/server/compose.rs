//! The compose file of `deploy/`, as far as it can be judged without containers: who is on which network, who gets which
//! secret, and what is reachable from outside.

use std::path::Path;

use serde_json::Value;

/// The services of the file, with what they take from its anchors.
fn file() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/compose.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The names of the networks or secrets of a service, which are a list or an object.
fn names(of: &Value) -> Vec<&str> {
    match of {
        Value::Array(items) => items.iter().map(|item| item.as_str().unwrap()).collect(),
        Value::Object(fields) => fields.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The services for which something holds, by name.
fn services(file: &Value, holds: impl Fn(&Value) -> bool) -> Vec<&str> {
    let services = file["services"].as_object().unwrap();
    let mut found: Vec<&str> =
        services.iter().filter(|(_, service)| holds(service)).map(|(name, _)| name.as_str()).collect();
    found.sort_unstable();
    found
}

#[test]
fn only_servers_reach_the_store() {
    let file = file();
    assert_eq!(file["networks"]["store"]["internal"], true);
    let on = |network: &'static str| move |service: &Value| names(&service["networks"]).contains(&network);
    assert_eq!(services(&file, on("store")), ["server-1", "server-2", "valkey"]);
    assert_eq!(services(&file, on("clients")), ["server-1", "server-2", "worker"]);
    let gets = |secret: &'static str| move |service: &Value| names(&service["secrets"]).contains(&secret);
    assert_eq!(services(&file, gets("store_url")), ["server-1", "server-2"]);
    assert_eq!(services(&file, gets("api_token")), ["server-1", "server-2"]);
    assert_eq!(services(&file, gets("valkey_acl")), ["valkey"]);
    assert_eq!(services(&file, gets("worker_token")), ["worker"]);
}

#[test]
fn nothing_but_servers_listens_outside_and_they_on_loopback_only() {
    let file = file();
    assert_eq!(services(&file, |service| service.get("ports").is_some()), ["server-1", "server-2"]);
    for server in ["server-1", "server-2"] {
        for port in names(&file["services"][server]["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{port}");
        }
    }
}

#[test]
fn no_container_of_ours_may_write_its_image_or_gain_rights() {
    let file = file();
    let ours = services(&file, |service| service["image"] == "flowfabric:local");
    assert_eq!(ours, ["server-1", "server-2", "worker"]);
    for name in ours {
        let service = &file["services"][name];
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(names(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(names(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
    }
}
