//! Logs that have a cap lose their oldest records, however large they are.

use ff_store::{Append, Batch, LogStart};
use ff_testkit::postgres::Server;
use tokio::time::timeout;

use crate::fixture::{PARTITION, TEST_TIMEOUT, command, connect, key, open};

#[tokio::test(flavor = "multi_thread")]
async fn a_log_too_large_for_one_statement_is_trimmed() {
    const CAP: u64 = 100;
    let url = Server::shared().create_database("trimming");
    let store = open(&url).await;
    let append = |count: usize, cap: u64| {
        let records = (0..count).map(|number| number.to_string().into()).collect();
        let append = Append { log: key("events"), records, expected: None, cap, in_turn: false };
        Batch { appends: vec![append], ..Batch::new(command()) }
    };
    for _ in 0..10 {
        store.commit(PARTITION, [append(2_000, 0)].into()).await.unwrap();
    }
    // As a server does whose time limit a larger statement would meet.
    let client = connect(&url).await;
    client
        .batch_execute(
            "CREATE FUNCTION flowfabric.only_a_few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF (SELECT count(*) FROM gone) > 5000 THEN RAISE query_canceled; END IF;
               RETURN NULL;
             END $$;
             CREATE TRIGGER only_a_few AFTER DELETE ON flowfabric.records
               REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION flowfabric.only_a_few()",
        )
        .await
        .unwrap();
    // So many records have the log trimmed for certain.
    store.commit(PARTITION, [append(200, CAP)].into()).await.unwrap();
    let count = "SELECT count(*) FROM flowfabric.records";
    let trimmed =
        async { while client.query_one(count, &[]).await.unwrap().get::<_, i64>(0) != i64::try_from(CAP).unwrap() {} };
    timeout(TEST_TIMEOUT, trimmed).await.expect("it gets as small as its cap");
    let newest = store.log(PARTITION, key("events"), LogStart::After(0), 1_000).await.unwrap().records;
    let texts: Vec<String> = (100..200).map(|number: i32| number.to_string()).collect();
    assert!(newest.iter().map(|record| &record.record[..]).eq(texts.iter().map(String::as_bytes)), "{newest:?}");
}
