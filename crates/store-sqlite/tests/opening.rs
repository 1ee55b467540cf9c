//! Answers of opening a file when something is in the way, and what survives a clean close.

use std::path::Path;

use ff_core::{CommandId, Key, Partition};
use ff_store::{Batch, Fence, Guard, Put, Store, StoreError, WatchEvent};
use ff_store_sqlite::{Options, SqliteStore, open};
use uuid::Uuid;

const HERE: Partition = Partition::flow(0);

fn refusal(path: impl AsRef<Path>) -> StoreError {
    open(&Options::new(path.as_ref())).expect_err("the file was opened")
}

fn create(key: &Key, command: u128) -> Batch {
    let put = Put { key: key.clone(), body: "body".into(), fence: Fence::default(), expires_at: None };
    let mut batch = Batch::new(CommandId(Uuid::from_u128(command)));
    batch.guards.push(Guard::Absent(key.clone()));
    batch.puts.push(put);
    batch
}

async fn has(store: &SqliteStore, key: &Key) -> bool {
    let store: &dyn Store = store;
    store.documents(HERE, vec![key.clone()]).await.unwrap()[0].is_some()
}

#[test]
fn a_missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = refusal(directory.path().join("nowhere/ff.db"));
    assert!(matches!(&error, StoreError::Config(why) if why.contains("nowhere")), "{error}");
}

#[test]
fn a_directory_is_not_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let error = refusal(directory.path());
    assert!(matches!(&error, StoreError::Config(why) if why.contains("is a directory")), "{error}");
}

#[test]
fn a_file_that_is_no_database_is_damaged_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let content = "this is not a database ".repeat(500);
    std::fs::write(&path, &content).unwrap();
    assert!(matches!(refusal(&path), StoreError::Corrupt(_)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
}

#[tokio::test]
async fn a_damaged_page_is_reported_and_never_a_panic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let key = Key::from_bytes(*b"x1");
    let store = open(&Options::new(&path)).unwrap();
    store.commit(HERE, [create(&key, 1)].into()).await.unwrap();
    store.close().await;
    let mut content = std::fs::read(&path).unwrap();
    content[4096..].fill(0xa5);
    std::fs::write(&path, content).unwrap();
    let error = match open(&Options::new(&path)) {
        Err(error) => error,
        Ok(store) => {
            let store: &dyn Store = &*store;
            store.documents(HERE, vec![key]).await.unwrap_err()
        }
    };
    assert!(matches!(error, StoreError::Corrupt(_)), "{error}");
}

#[tokio::test]
async fn a_newer_file_is_refused_with_both_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    open(&Options::new(&path)).unwrap().close().await;
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 7).unwrap();
    assert_eq!(refusal(&path), StoreError::Newer { found: 7, known: 2 });
}

#[test]
fn a_database_of_another_program_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
    drop(connection);
    let error = refusal(&path);
    assert!(matches!(&error, StoreError::Config(why) if why.contains("another program")), "{error}");
}

#[tokio::test]
async fn a_file_in_use_is_refused_and_the_process_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let error = refusal(&path);
    let id = std::process::id().to_string();
    assert!(matches!(&error, StoreError::Locked(why) if why.contains(&id)), "{error}");
    store.close().await;
    open(&Options::new(&path)).expect("a closed store lets go of its file");
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_name_of_a_file_shares_its_lock() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(refusal(&link), StoreError::Locked(_)));
    store.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_may_open_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let store = open(&Options::new(directory.path().join("ff.db"))).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} has the mode {mode:o}", entry.file_name());
        seen += 1;
    }
    assert!(seen >= 2, "the database and its lock");
    store.close().await;
}

#[cfg(unix)]
#[test]
fn a_directory_that_takes_no_files_is_read_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    // Permissions do not bind the superuser; the kernel's own directory binds every user.
    let bound = std::fs::File::create(directory.path().join("probe")).is_err();
    let path = if bound { directory.path() } else { Path::new("/sys") };
    let error = refusal(path.join("ff.db"));
    assert!(matches!(error, StoreError::ReadOnly(_)), "{error}");
}

#[test]
fn a_read_only_file_is_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    std::fs::write(&path, "").unwrap();
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    match std::fs::OpenOptions::new().write(true).open(&path) {
        Err(_) => assert!(matches!(refusal(&path), StoreError::ReadOnly(_))),
        // Permissions do not bind the superuser: then the file opens.
        Ok(_) => assert!(open(&Options::new(&path)).is_ok()),
    }
}

#[tokio::test]
async fn what_was_committed_is_there_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let key = Key::from_bytes(*b"x1");
    let store = open(&Options::new(&path)).unwrap();
    let outcomes = store.commit(HERE, [create(&key, 1)].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().is_some());
    store.close().await;
    let store = open(&Options::new(&path)).unwrap();
    assert!(has(&store, &key).await);
    store.close().await;
}

#[tokio::test]
async fn a_closed_store_answers_what_it_accepted_and_refuses_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&Options::new(directory.path().join("ff.db"))).unwrap();
    let mut hints = store.watch();
    let calls: Vec<_> = (1..=100u128)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(HERE, [create(&Key::from_bytes(n.to_be_bytes()), n)].into()).await })
        })
        .collect();
    let mut calls = calls.into_iter();
    let first = calls.next().unwrap().await.unwrap();
    assert!(first.is_ok());
    store.close().await;
    for call in calls {
        match call.await.unwrap() {
            Ok(outcomes) => assert!(outcomes[0].clone().applied().is_some()),
            Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
    }
    let late = store.commit(HERE, [create(&Key::from_bytes(*b"late"), 7)].into()).await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.read(HERE, vec![]).await, Err(StoreError::Unavailable(_))));
    assert_eq!(hints.next().await, None::<WatchEvent>);
    assert_eq!(store.watch().next().await, None::<WatchEvent>);
    store.close().await;
}

#[tokio::test]
async fn time_goes_on_in_a_file_that_is_ahead_of_the_system() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let store = open(&Options::new(&path)).unwrap();
    let now = store.read(HERE, vec![]).await.unwrap().at;
    store.close().await;
    let ahead = now + 3_600_000;
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE clock SET last = ?1", [ahead]).unwrap();
    let store = open(&Options::new(&path)).unwrap();
    let first = store.read(HERE, vec![]).await.unwrap().at;
    assert!((ahead..ahead + 60_000).contains(&first), "it went back, or far ahead: {}", first - ahead);
    let passes = async { while store.read(HERE, vec![]).await.unwrap().at < first + 20 {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), passes).await.expect("it does not stand still");
    let outcomes = store.commit(HERE, [create(&Key::from_bytes(*b"x1"), 1)].into()).await.unwrap();
    assert!(outcomes[0].clone().applied().unwrap().at >= first + 20);
    store.close().await;
}

const OTHER_ADDRESS: &str = "FF_OTHER_PROCESS_ADDRESS";

/// The answer that another process gets when it opens a file: its error, or nothing.
fn told_elsewhere(path: &Path) -> String {
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process_opens_what_it_is_told_to", "--nocapture"])
        .env(OTHER_ADDRESS, path)
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let output = String::from_utf8(run.stdout).unwrap();
    output.lines().filter_map(|line| line.split_once("told: ")).map(|(_, why)| why.to_owned()).collect()
}

/// Does nothing unless it is run by [`told_elsewhere`].
#[test]
fn another_process_opens_what_it_is_told_to() {
    if let Some(path) = std::env::var_os(OTHER_ADDRESS) {
        match open(&Options::new(path)) {
            Ok(_) => println!("told: it is open"),
            Err(why) => println!("told: {why:?}"),
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn neither_a_hard_link_nor_a_removed_lock_file_lets_a_second_process_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ff.db");
    let link = directory.path().join("link.db");
    let key = Key::from_bytes(*b"x1");
    let store = open(&Options::new(&path)).unwrap();
    store.commit(HERE, [create(&key, 1)].into()).await.unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    assert!(matches!(refusal(&link), StoreError::Locked(_)), "a second name, here");
    let told = told_elsewhere(&link);
    assert!(told.starts_with("Locked"), "a second name, elsewhere: {told}");
    std::fs::remove_file(directory.path().join("ff.db-lock")).unwrap();
    assert!(matches!(refusal(&path), StoreError::Locked(_)), "without its lock file, here");
    let told = told_elsewhere(&path);
    assert!(told.starts_with("Locked"), "without its lock file, elsewhere: {told}");
    // SQLite's own locks have survived all of that: another program does not take the log away from us.
    let other = rusqlite::Connection::open(&path).unwrap();
    let count: i64 = other.query_row("SELECT count(*) FROM documents", [], |row| row.get(0)).unwrap();
    drop(other);
    assert_eq!(count, 1);
    assert!(directory.path().join("ff.db-wal").exists(), "the last to leave removes the log, and we have not left");
    store.commit(HERE, [create(&Key::from_bytes(*b"x2"), 2)].into()).await.unwrap();
    store.close().await;
    assert_eq!(told_elsewhere(&path), "it is open");
}
