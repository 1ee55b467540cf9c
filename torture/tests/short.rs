//! A short campaign of faults against the command line's own server, on SQLite and on Valkey: nothing acknowledged is lost,
//! nothing happens twice, nothing is stuck. `cargo xtask torture` runs long ones on every store.

use std::path::PathBuf;
use std::time::Duration;

use ff_torture::campaign::Campaign;
use ff_torture::crew::Launch;
use ff_torture::fault::Fault;
use ff_torture::nemesis::Tempo;
use ff_torture::store::Kind;
use ff_torture::workload::plan::Load;

/// The campaign starts this program again as its workers, with this test and a word in the environment.
#[test]
fn be_a_worker() {
    ff_torture::work_if_asked();
}

/// The command, which cargo builds before any test of the workspace runs. A test of this package alone needs it from
/// `cargo build --package ff-cli`.
fn program() -> String {
    let myself = std::env::current_exe().expect("a test is a program");
    let program: Option<PathBuf> = myself.parent().and_then(|deps| deps.parent()).map(|folder| folder.join("ff"));
    let program = program.filter(|program| program.is_file()).expect("run `cargo build --package ff-cli` first");
    program.display().to_string()
}

fn short_campaign(kind: Kind, faults: Vec<Fault>) {
    let folder = std::env::temp_dir().join(format!("ff-torture-short-{}-{}", kind.name(), std::process::id()));
    let myself = std::env::current_exe().expect("a test is a program");
    let launch = [myself.display().to_string().as_str(), "be_a_worker", "--exact", "--nocapture"].map(str::to_owned);
    let campaign = Campaign {
        program: program(),
        older: None,
        launch: Launch(launch.to_vec()),
        kind,
        // Every fault strikes once all the same.
        time: Duration::from_secs(1),
        goal: None,
        tempo: Tempo::USUAL,
        faults,
        servers: None,
        load: Load { pace: Duration::from_millis(120), ..Load::USUAL },
        seed: 1,
        folder: folder.clone(),
        variables: Vec::new(),
    };
    let finished = campaign.run().expect("the campaign runs");
    let page = finished.score.page(kind.name());
    assert_eq!(finished.score.violations(), 0, "{page}");
    assert!(finished.score.accepted > 200, "a load without calls shows nothing: {page}");
    // The history of a campaign that broke a rule stays where it is.
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn sqlite_keeps_what_it_acknowledged_under_faults() {
    short_campaign(Kind::Sqlite, vec![Fault::ServerKill, Fault::ClientsReset, Fault::WorkerKill]);
}

#[test]
fn valkey_keeps_what_it_acknowledged_under_faults() {
    short_campaign(Kind::Valkey, vec![Fault::StoreKill, Fault::WorkerStop, Fault::StoreDeaf, Fault::FunctionFlush]);
}
