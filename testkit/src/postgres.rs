//! PostgreSQL servers for tests: a cluster of its own in a temporary directory, on a free port of 127.0.0.1.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::port::free_port;

/// Where distributions put the programs of the server, besides the search path.
const PLACES: [&str; 4] = ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt"];
/// Users that own nothing of value, to run the server as when we are root: it refuses to run as root.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// How long a server may take to start; recovery after a kill is part of it.
const START_MAX: Duration = Duration::from_secs(60);
/// The superuser of every cluster here. Connections are trusted.
const SUPERUSER: &str = "flowfabric";

/// Sent to the guardian's shell: it waits until its input ends, which it does when the test process is gone for
/// whatever reason, and then ends the server and removes its files. An immediate shutdown gives shared memory back.
const GUARDIAN: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
  kill -QUIT "$pid" 2>/dev/null
  for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
"#;

/// A running server. It ends with this value, and with the process in any case.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    directory: PathBuf,
    owner: Option<(u32, u32)>,
    port: u16,
    settings: Vec<String>,
    process: Mutex<Option<Child>>,
    guardian: Child,
}

impl Server {
    /// A new, empty cluster, already answering.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start; the message says what to do.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with settings of its own, such as `max_connections=20`.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_with(settings: &[&str]) -> Self {
        let server = Self::prepare(settings);
        server.initialise();
        server.launch();
        server
    }

    /// A server that offers encrypted connections with this certificate and key, both PEM.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn start_encrypted(certificate: &str, key: &str) -> Self {
        let mut server = Self::prepare(&["ssl=on"]);
        for (setting, name, content) in
            [("ssl_cert_file", "certificate.pem", certificate), ("ssl_key_file", "key.pem", key)]
        {
            let path = server.directory.join(name);
            fs::write(&path, content).expect("the directory is ours");
            // The server refuses a key that others may read.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
            if let Some((user, group)) = server.owner {
                chown(&path, Some(user), Some(group)).expect("root may give its own file away");
            }
            server.settings.push(format!("{setting}={}", path.display()));
        }
        server.initialise();
        server.launch();
        server
    }

    /// A standby that follows this server and takes only reads.
    ///
    /// # Panics
    /// As [`Server::start`].
    pub fn standby(&self) -> Self {
        let standby = Self::prepare(&[]);
        let copied = standby
            .command("pg_basebackup")
            .args(["-h", "127.0.0.1", "-U", SUPERUSER, "-p", &self.port.to_string()])
            .args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "-D"])
            .arg(standby.directory.join("data"))
            .output()
            .unwrap_or_else(|error| panic!("cannot run pg_basebackup: {error}"));
        assert!(copied.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
        standby.launch();
        standby
    }

    /// Makes a standby a server of its own; returns when it takes writes.
    ///
    /// # Panics
    /// When it does not.
    pub fn promote(&self) {
        let promoted = self
            .command("pg_ctl")
            .args(["promote", "--wait", "-D"])
            .arg(self.directory.join("data"))
            .output()
            .unwrap_or_else(|error| panic!("cannot run pg_ctl: {error}"));
        assert!(promoted.status.success(), "pg_ctl promote: {}", String::from_utf8_lossy(&promoted.stderr));
    }

    /// Lets no file of the server grow past so many bytes: to PostgreSQL its disk is full. `None` gives room again.
    /// The write-ahead log needs 16 MiB for each of its files.
    ///
    /// # Panics
    /// When the server is not running, or the system has no `prlimit`.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        let limit = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let first = process.as_ref().expect("the server runs").id();
        // Processes that start later have the limit of the first.
        for pid in std::iter::once(first.to_string()).chain(children(first)) {
            // Only the soft limit: raising it again needs no rights.
            let mut prlimit = Command::new("prlimit");
            prlimit.args(["--pid", &pid, &format!("--fsize={limit}:")]);
            if let Some((user, group)) = self.owner {
                prlimit.uid(user).gid(group);
            }
            let set = prlimit.output().unwrap_or_else(|error| panic!("cannot run prlimit: {error}"));
            assert!(set.status.success() || !alive(&pid), "prlimit: {}", String::from_utf8_lossy(&set.stderr));
        }
    }

    fn prepare(settings: &[&str]) -> Self {
        let programs = programs().unwrap_or_else(|| {
            panic!("these tests need PostgreSQL 13 or later: run `cargo xtask test`, or install the package postgresql")
        });
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("ff-postgres-{}-{number}", std::process::id()));
        // A directory of a former process with our number has no owner any more.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap_or_else(|error| panic!("cannot make {}: {error}", directory.display()));
        let owner = unprivileged(&directory);
        if let Some((user, group)) = owner {
            chown(&directory, Some(user), Some(group)).expect("root may give its own directory away");
        }
        let guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("every system these tests run on has a shell");
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        Self { programs, directory, owner, port: free_port(), settings, process: Mutex::new(None), guardian }
    }

    /// One server for all tests of a process, for those that neither kill nor fill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Server::start)
    }

    /// The address of the database that every cluster has.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The address of a database.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes an empty database and gives its address.
    ///
    /// # Panics
    /// When the server refuses.
    pub fn create_database(&self, name: &str) -> String {
        let made = self
            .command("createdb")
            .args(["-h", "127.0.0.1", "-U", SUPERUSER, "-p", &self.port.to_string(), name])
            .output()
            .unwrap_or_else(|error| panic!("cannot run createdb: {error}"));
        assert!(made.status.success(), "createdb {name}: {}", String::from_utf8_lossy(&made.stderr));
        self.url_of(name)
    }

    /// Kills the server and all its processes, as a crash would: nothing is flushed, no client is told.
    ///
    /// # Panics
    /// When the server is not running.
    pub fn kill9(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = process.take().expect("the server runs");
        let mut doomed = vec![child.id().to_string()];
        doomed.extend(children(child.id()));
        // One process after another would leave some time to say goodbye.
        Command::new("kill").arg("-KILL").args(&doomed).stderr(Stdio::null()).status().expect("kill is everywhere");
        child.wait().expect("our own child can be waited for");
        let deadline = Instant::now() + START_MAX;
        while doomed.iter().any(|pid| alive(pid)) {
            assert!(Instant::now() < deadline, "processes of a killed server stay");
            sleep(Duration::from_millis(2));
        }
    }

    /// Stops all its processes where they are, without closing connections.
    ///
    /// # Panics
    /// When the server is not running.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets stopped processes go on.
    ///
    /// # Panics
    /// When the server is not running.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let first = process.as_ref().expect("the server runs").id();
        let all: Vec<String> = std::iter::once(first.to_string()).chain(children(first)).collect();
        // A process that ended meanwhile needs no signal.
        let _ = Command::new("kill").arg(signal).args(&all).stderr(Stdio::null()).status();
    }

    /// Runs a statement in the database that every cluster has.
    ///
    /// # Panics
    /// When the server refuses it.
    pub fn sql(&self, statement: &str) {
        let port = self.port.to_string();
        let done = self
            .command("psql")
            .args(["-h", "127.0.0.1", "-U", SUPERUSER, "-p", &port, "-d", "postgres", "-q", "-c", statement])
            .output()
            .unwrap_or_else(|error| panic!("cannot run psql: {error}"));
        assert!(done.status.success(), "{statement}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Starts a killed server again on its files; returns when it answers.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self) {
        // Before recovery the server syncs every file of the cluster, in case the machine had crashed. It had not, and
        // on a busy disk that takes seconds.
        self.set_fsync(false);
        self.launch();
        self.set_fsync(true);
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = process.as_ref().expect("it was just started").id().to_string();
        let told = Command::new("kill").args(["-HUP", &pid]).status();
        assert!(told.is_ok_and(|status| status.success()), "the server ended right after its start");
    }

    fn set_fsync(&self, on: bool) {
        let text = format!("fsync = {}\n", if on { "on" } else { "off" });
        fs::write(self.directory.join("data/fsync.conf"), text).expect("a configuration can be written");
    }

    fn initialise(&self) {
        let made = self
            .command("initdb")
            .args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-U", SUPERUSER, "-D"])
            .arg(self.directory.join("data"))
            .output()
            .unwrap_or_else(|error| panic!("cannot run initdb: {error}"));
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(self.directory.join("data/postgresql.conf"))
            .expect("initdb wrote a configuration");
        // Shared memory in files of its own goes away with them, also after a kill.
        self.set_fsync(true);
        let fixed = "include = 'fsync.conf'\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n\
                     shared_buffers = '64MB'\ndynamic_shared_memory_type = mmap\nlog_min_messages = fatal\n";
        file.write_all(fixed.as_bytes()).expect("a configuration can be written");
    }

    fn launch(&self) {
        let deadline = Instant::now() + START_MAX;
        let log = fs::File::create(self.directory.join("log")).expect("the directory is ours");
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.directory.join("data")).args(["-p", &self.port.to_string()]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run postgres: {error}"));
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        while !self.answers() {
            let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = process.as_mut().expect("it was just started").try_wait();
            if !matches!(ended, Ok(None)) || Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                panic!("PostgreSQL does not start ({ended:?}): {log}");
            }
            drop(process);
            sleep(Duration::from_millis(20));
        }
    }

    /// The port opens before the server is ready, so the server itself is asked.
    fn answers(&self) -> bool {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port);
        TcpStream::connect(address).is_ok()
            && self
                .command("pg_isready")
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status()
                .is_ok_and(|status| status.success())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // Not the directory of the test: the user the server runs as may not be allowed there.
        command.current_dir(&self.directory).env("TZ", "UTC");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input tells the guardian to clean up.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
        if let Some(mut process) = self.process.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The directory with the newest server's programs.
pub fn programs() -> Option<PathBuf> {
    let complete = |directory: &Path| directory.join("initdb").is_file() && directory.join("postgres").is_file();
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for place in PLACES {
        for version in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = version.file_name().to_string_lossy().trim_start_matches("postgresql@").to_owned();
            let directory = version.path().join("bin");
            if let Ok(number) = name.parse()
                && complete(&directory)
            {
                found.push((number, directory));
            }
        }
    }
    let newest = found.into_iter().max().map(|(_, directory)| directory);
    newest.or_else(|| std::env::split_paths(&std::env::var_os("PATH")?).find(|directory| complete(directory)))
}

/// The user to run the server as; `None` where the tests do not run as root themselves.
fn unprivileged(directory: &Path) -> Option<(u32, u32)> {
    if fs::metadata(directory).expect("the directory was just made").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("every system these tests run on has users");
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.len() > 3 && fields[0] == wanted)
                .then(|| Some((fields[2].parse().ok()?, fields[3].parse().ok()?)))?
        })
    };
    let user = USERS.into_iter().find_map(find);
    Some(user.unwrap_or_else(|| panic!("PostgreSQL refuses to run as root, and there is no user {USERS:?}")))
}

/// The server's processes are all children of its first.
fn children(parent: u32) -> Vec<String> {
    let parent = parent.to_string();
    let listed = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().expect("ps is everywhere");
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let pairs = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    pairs.filter(|(_, of)| of.trim() == parent).map(|(pid, _)| pid.trim().to_owned()).collect()
}

/// Whether a process is there and not just waiting to be collected.
fn alive(pid: &str) -> bool {
    let listed = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().expect("ps is everywhere");
    let state = String::from_utf8_lossy(&listed.stdout).into_owned();
    !state.trim().is_empty() && !state.trim_start().starts_with('Z')
}
