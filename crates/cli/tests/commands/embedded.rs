//! Commands on a store, without a server.

use crate::support::{command, run};

#[test]
fn a_store_is_used_in_this_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("ff.db").display());
    let with = |arguments: &[&str]| run(command(&[arguments, &["--server", &store]].concat()), "");
    let submitted = with(&["submit", "greet", "1"]);
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let listed = with(&["ls", "-o", "json"]).json();
    assert_eq!(listed["items"][0]["execution_id"], submitted.stdout.trim());
}
