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

#[test]
fn a_store_that_is_not_there_is_told_soon() {
    for store in ["valkey://127.0.0.1:1", "postgres://127.0.0.1:1/none"] {
        let began = std::time::Instant::now();
        let ended = run(command(&["ls", "--server", store]), "");
        assert_eq!(ended.code, 9, "{ended:?}");
        assert!(ended.stderr.contains("Check the address"), "{ended:?}");
        assert!(began.elapsed().as_secs() < 5, "{store}: {:?}", began.elapsed());
    }
}
