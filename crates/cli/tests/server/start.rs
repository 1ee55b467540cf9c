//! Reasons that keep the server from starting, and what it says about itself.

use crate::process::{Process, command, request};

fn outcome(arguments: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let output = command(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_wrong_configuration_is_refused_with_its_reason() {
    for (arguments, variables, word) in [
        (&["--listen", "0.0.0.0:0"][..], &[][..], "FF_API_TOKEN"),
        (&["--listen", "nowhere"], &[], "listen"),
        (&[], &[("FF_LISTN", "x")], "FF_LISTN"),
        (&["--flow-partitions", "2"], &[], "together"),
        (&["--config", "/nonexistent/ff.toml"], &[], "ff.toml"),
        (&["--log-level", "a=b=c"], &[], "log_level"),
        (&[], &[("FF_API_TOKEN", "hunter2")], "openssl rand"),
        (&["--caller-share-percent", "101"], &[], "caller_share_percent"),
        (&["--tls-cert-file", "/nonexistent/chain.pem"], &[], "tls_key_file"),
        (&["--tls-cert-file", "/nonexistent/chain.pem", "--tls-key-file", "/dev/null"], &[], "/nonexistent/chain.pem"),
    ] {
        let (code, _, errors) = outcome(arguments, variables);
        assert_eq!(code, Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(word), "{errors}");
    }
    let (code, _, errors) = outcome(&["--store", "mysql://user:hunter2@host"], &[]);
    assert_ne!(code, Some(0));
    assert!(errors.contains("mysql") && !errors.contains("hunter2"), "{errors}");
}

#[test]
fn a_mistake_in_the_file_is_told_by_line_and_key_and_without_the_value() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ff.toml");
    for (text, words) in [
        ("store = 'memory://'\nsse_max = 'canary'\n", &["ff.toml", "line 2", "sse_max", "must be"][..]),
        ("\n\nlisten = 7\n", &["ff.toml", "line 3", "listen", "must be a string"]),
        ("listn = 'canary'\n", &["ff.toml", "line 1", "listn"]),
        ("lanes = ['canary'\n", &["ff.toml", "line "]),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, errors) = outcome(&["--config", file.to_str().unwrap()], &[]);
        assert_eq!(code, Some(2), "{errors}");
        assert!(words.iter().all(|word| errors.contains(word)) && !errors.contains("canary"), "{errors}");
    }
}

#[test]
fn the_configuration_is_printed_without_its_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ff.toml");
    std::fs::write(&file, "listen = '127.0.0.1:1'\nlanes = ['a', 'b']\nsse_max = 7\n").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--print-config", "--sse-max", "8"];
    let variables = [
        ("FF_API_TOKEN", "hunter2-hunter2-hunter2"),
        ("FF_STORE", "valkey://u:hunter3@h"),
        ("FF_LISTEN", "127.0.0.1:2"),
    ];
    let (code, printed, errors) = outcome(&arguments, &variables);
    assert_eq!(code, Some(0), "{errors}");
    assert!(!printed.contains("hunter"), "{printed}");
    for line in ["listen = \"127.0.0.1:2\"", "lanes = [\"a\", \"b\"]", "sse_max = 8", "drain_ms = 15000"] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
}

#[test]
fn every_setting_is_a_flag_a_variable_and_a_key_and_unknown_ones_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ff.toml");
    let (_, everything, _) = outcome(&["--print-config"], &[]);
    // The printed configuration can be read again, and says the same.
    std::fs::write(&file, &everything).unwrap();
    let (code, again, errors) = outcome(&["--print-config", "--config", file.to_str().unwrap()], &[]);
    assert_eq!((code, again.as_str()), (Some(0), everything.as_str()), "{errors}");
    for line in
        ["sqlite_sync = \"full\"", "page_max = 1000", "lease_ttl_default_ms = 30000", "input_max_bytes = 1048576"]
    {
        assert!(everything.contains(line), "{line} is not in {everything}");
    }
    let (_, valkey, _) =
        outcome(&["--print-config", "--store", "valkey://h", "--replicas", "2"], &[("FF_DURABILITY", "replicated")]);
    for line in [
        "durability = \"replicated\"",
        "replicas = 2",
        "connect_timeout_ms = 10000",
        "request_timeout_ms = 5000",
        "load_library = true",
    ] {
        assert!(valkey.contains(line), "{line} is not in {valkey}");
    }
    let table = "[namespace_defaults.team.policy]\nmax_replay_count = 3\n";
    std::fs::write(&file, table).unwrap();
    let (code, namespaces, errors) = outcome(&["--print-config", "--config", file.to_str().unwrap()], &[]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(namespaces.contains("[namespace_defaults.team.policy]\nmax_replay_count = 3"), "{namespaces}");
    for (text, word) in [
        ("page_maxx = 1", "page_maxx"),
        ("page_max = 1001", "page_max"),
        ("body_max_bytes = 0", "body_max_bytes"),
        ("durability = 'async'", "durability"),
        ("otlp_endpoint = 'nowhere'", "otlp_endpoint"),
        ("otlp_headers = 'a=hunter2'", "otlp_endpoint"),
        ("[namespace_defaults.team.policy]\nmax_replays = 3", "max_replays"),
        ("[namespace_defaults.team]\nlane = 'x'", "lane"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, errors) = outcome(&["--config", file.to_str().unwrap()], &[]);
        assert_eq!(code, Some(2), "{text}: {errors}");
        assert!(errors.contains(word) && !errors.contains("hunter2"), "{errors}");
    }
    let (code, _, errors) = outcome(&["--namespace-defaults", "{"], &[]);
    assert_eq!(code, Some(2), "{errors}");
}

#[test]
fn a_server_runs_on_postgres_with_settings_of_its_own() {
    let database = ff_testkit::postgres::Server::shared().create_database("start");
    let server = Process::start(&database, &[("FF_POSTGRES_SCHEMA", "mine"), ("FF_POSTGRES_POOL_SIZE", "4")]);
    assert_eq!(request(&server.address, "GET /readyz", &[], "").unwrap().0, 200);
    let created = request(&server.address, "POST /v1/executions", &[], r#"{"kind":"k","input":1}"#).unwrap();
    assert_eq!(created.0, 201, "{}", created.1);
    server.terminate();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("schema=mine") && log.contains("1/1/1"), "{log}");
}

#[test]
fn a_command_reaches_a_server_with_tls_by_the_authority_it_is_given() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (chain, key) = (chain.to_str().unwrap(), key.to_str().unwrap());
    let server = Process::start("memory://", &[("FF_TLS_CERT_FILE", chain), ("FF_TLS_KEY_FILE", key)]);
    let url = format!("https://localhost:{}", server.address.rsplit_once(':').unwrap().1);
    let ff = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ff"));
        command.args(arguments).env("XDG_CONFIG_HOME", folder.path()).env_remove("FF_CA_FILE").output().unwrap()
    };
    let trusting = ff(&["ls", "--server", &url, "--ca-file", chain]);
    assert!(trusting.status.success(), "{trusting:?}");
    let profiles = folder.path().join("flowfabric");
    std::fs::create_dir_all(&profiles).unwrap();
    let profile = format!("[profiles.safe]\nserver = '{url}'\nca_file = '{chain}'\n");
    std::fs::write(profiles.join("config.toml"), profile).unwrap();
    assert!(ff(&["ls", "--profile", "safe"]).status.success());
    let distrusting = ff(&["ls", "--server", &url]);
    assert!(!distrusting.status.success());
    assert!(String::from_utf8(distrusting.stderr).unwrap().contains("FF_CA_FILE"));
    server.terminate();
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn a_start_says_what_runs_where_and_what_is_open() {
    let server = Process::start("memory://", &[]);
    assert_eq!(request(&server.address, "GET /readyz", &[], "").unwrap().0, 200);
    server.terminate();
    let (status, log) = server.ended();
    assert_eq!(status.code(), Some(0));
    for word in ["memory://", "\"version\"", "\"partitions\"", "\"lanes\":\"open\"", "no API token is configured"] {
        assert!(log.contains(word), "{word} is not in {log}");
    }
}
