//! Every example runs with one command, on the embedded store, and says what it should.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than an example may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs an example on a file; answers with its end and what it printed.
fn start(example: &str, directory: &Path, more: &[&str]) -> Output {
    let url = format!("sqlite://{}", directory.join("ff.db").display());
    let mut command = Command::new(program(example));
    command.arg(&url).args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    within_patience(example, command.spawn().unwrap())
}

/// Runs an example on a fresh file; its output must have this line.
fn run(example: &str, line: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = start(example, directory.path(), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {text}{problems}");
    assert!(text.lines().any(|printed| printed.contains(line)), "{example} did not say {line:?}: {text}{problems}");
}

/// Where `cargo test` has put it: examples are built together with the tests. Building them here once more would mean
/// other features of the dependencies, and so to build those again, too.
fn program(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(example);
    assert!(program.is_file(), "{example} is not built: run `cargo build --examples --package flowfabric` first");
    program
}

fn within_patience(example: &str, child: Child) -> Output {
    let id = child.id().to_string();
    let (ended, output) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output().unwrap()));
    output.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| {
        let _ = Command::new("kill").arg(id).status();
        panic!("{example} does not end")
    })
}

#[test]
fn hello() {
    run("hello", "Hello, world!");
}

#[test]
fn llm_stream() {
    run("llm_stream", "A durable execution survives its worker, its server and your deploy on a Friday afternoon.");
}

#[test]
fn human_approval() {
    run("human_approval", "v1.2.3 deployed, approved by ada");
}

#[test]
fn agent_loop() {
    run("agent_loop", "The sea: <tides>, <more about <tides>>, approved by ada");
}

#[test]
fn tenants() {
    run("tenants", "nobody waited for acme");
}

#[test]
fn saga() {
    run("saga", "the trip failed: no cars are left");
}

#[test]
fn order() {
    run("order", "[lamp] [chair] after 1 day");
}

/// How often the agent is killed on each store; the gate kills it once at every boundary.
fn kills() -> usize {
    std::env::var("FF_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(0)
}

/// The effects of one life of the agent, or of several, on the world.
struct Lives {
    /// Whether it was killed; otherwise it ended before it came to that boundary.
    killed: bool,
    last_words: String,
    effects: Vec<String>,
}

/// Starts the agent, which dies at a boundary, and starts it again.
fn killed_at(boundary: usize, url: &str, namespace: &str, folder: &Path) -> Lives {
    let effects = folder.join(format!("{namespace}.txt"));
    let live = |more: &[&str]| {
        let mut command = Command::new(program("agent_loop"));
        command.args([url, "--namespace", namespace, "--effects"]).arg(&effects).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        within_patience("agent_loop", command.spawn().unwrap())
    };
    let first = live(&["--die-at", &boundary.to_string()]);
    let killed = !first.status.success();
    assert!(!killed || first.status.code().is_none(), "it ended otherwise: {first:?}");
    let last = if killed { live(&[]) } else { first };
    let last_words = String::from_utf8(last.stdout).unwrap();
    assert!(last.status.success(), "{last_words}{}", String::from_utf8_lossy(&last.stderr));
    let effects = std::fs::read_to_string(&effects).unwrap();
    Lives { killed, last_words, effects: effects.lines().map(str::to_owned).collect() }
}

/// Kills the agent at every boundary of a step: what was completed ran once, and what must happen once happened at most
/// once. Says how often it was killed.
fn kill_everywhere(least: usize, store: impl Fn(usize, &Path) -> String) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let (mut kills, mut boundary) = (0, 0);
    for run in 0.. {
        let lives = killed_at(boundary, &store(run, folder.path()), &format!("run-{run}"), folder.path());
        let count = |what: &str| lives.effects.iter().filter(|effect| effect.as_str() == what).count();
        let thoughts = ["model 0", "model 1", "model 2", "search tides", "search more about <tides>"];
        for effect in thoughts {
            assert_eq!(count(effect), 1, "{effect} at boundary {boundary}: {:?}", lives.effects);
        }
        assert!(count("publish") <= 1, "published twice at boundary {boundary}: {:?}", lives.effects);
        let published = lives.last_words.contains("approved by ada");
        let in_doubt = lives.last_words.contains("nobody knows whether step publish happened");
        assert!(published != in_doubt, "boundary {boundary}: {}", lives.last_words);
        assert!(!published || count("publish") == 1, "boundary {boundary}: {}", lives.last_words);
        assert!(lives.last_words.contains("tokens used: Some(30)"), "boundary {boundary}: {}", lives.last_words);
        if lives.killed {
            kills += 1;
            boundary += 1;
        } else {
            assert!(boundary > 9, "there are more boundaries than {boundary}");
            if kills >= least {
                return kills;
            }
            boundary = 0;
        }
    }
    kills
}

#[test]
fn an_agent_that_is_killed_at_every_step_does_nothing_twice_on_sqlite() {
    let killed =
        kill_everywhere(kills(), |run, folder| format!("sqlite://{}", folder.join(format!("{run}.db")).display()));
    println!("killed {killed} times");
}

#[test]
fn an_agent_that_is_killed_at_every_step_does_nothing_twice_on_valkey() {
    let valkey = ff_testkit::valkey::Server::start();
    let killed = kill_everywhere(kills(), |_, _| format!("valkey://{}", valkey.address()));
    println!("killed {killed} times");
}

#[test]
fn durable_agent() {
    run("durable_agent", "<<tides>> sent, approved by ada");
}

#[test]
fn durable_agent_goes_on_after_a_crash_without_asking_again() {
    let directory = tempfile::tempdir().unwrap();
    let crashed = start("durable_agent", directory.path(), &["--crash"]);
    let text = String::from_utf8(crashed.stdout).unwrap();
    assert_eq!((crashed.status.code(), text.matches("the model is asked").count()), (Some(3), 2), "{text}");
    let output = start("durable_agent", directory.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8(output.stderr).unwrap());
    assert_eq!(text, "the mail is sent\n<<tides>> sent, approved by ada\n");
}

#[test]
fn the_agent_of_the_quick_start_is_that_of_the_example() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("../../docs/quickstart.md")).unwrap();
    let example = std::fs::read_to_string(here.join("examples/durable_agent.rs")).unwrap();
    let (_, printed) = page.split_once("```rust agent.rs\n").unwrap();
    let (printed, _) = printed.split_once("```").unwrap();
    assert!(example.contains(printed), "docs/quickstart.md prints another agent than examples/durable_agent.rs has");
}

#[test]
fn provider_limits() {
    run("provider_limits", "all 12 agents have their answers");
}

#[test]
fn agent_budget() {
    run("agent_budget", "the ceiling of 1000 held");
}

#[test]
fn fan_out() {
    run("fan_out", "the squares of 1 to 100 sum to 338350");
}

#[test]
fn quorum_race() {
    run("quorum_race", "the judge has [\"a says 42\", \"c says 42\"]");
}

#[test]
fn external_callback() {
    run("external_callback", "paid 4200, receipt r-4200");
}

#[test]
fn crash_recovery() {
    let directory = tempfile::tempdir().unwrap();
    let output = start("crash_recovery", directory.path(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for line in ["the first half is done", "the second half is done", "the result is 42", "attempt 1: reclaim by heir"]
    {
        assert_eq!(text.lines().filter(|printed| *printed == line).count(), 1, "{line:?} in {text}");
    }
}
