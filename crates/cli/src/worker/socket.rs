//! Where `ff task` calls of one program arrive.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::task::{Answer, Call};

/// Longer than any call: a frame of 64 KiB or a continuation of 1 MiB, in base64 or escaped.
const LINE_MAX_BYTES: u64 = 8 * 1024 * 1024;

/// A call and where its answer goes.
pub(super) type Asked = (Call, oneshot::Sender<Answer>);

/// A folder for the sockets of a worker. Only its own user may enter it: a process that connects to a socket speaks for a task.
pub(super) fn private_folder() -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;

    let owner_only = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("ff-worker-").permissions(owner_only).tempdir()
}

/// The socket of one program. Its folder is the worker's own, which no other user may enter.
pub(super) struct ProgramSocket {
    path: PathBuf,
    /// Ends with the socket, and all its connections with it.
    serving: JoinSet<()>,
}

impl ProgramSocket {
    /// Opens a socket; calls come out of the receiver, one after another.
    pub(super) fn open(folder: &Path, name: &str) -> std::io::Result<(Self, mpsc::Receiver<Asked>)> {
        let path = folder.join(name);
        let listener = UnixListener::bind(&path)?;
        let (calls, waiting) = mpsc::channel(1);
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, calls));
        Ok((Self { path, serving }, waiting))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ProgramSocket {
    fn drop(&mut self) {
        self.serving.abort_all();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, calls: mpsc::Sender<Asked>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(converse(stream, calls.clone()));
    }
}

/// Answers line by line until the program hangs up.
async fn converse(mut stream: UnixStream, calls: mpsc::Sender<Asked>) {
    let (reading, mut writing) = stream.split();
    let mut lines = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(LINE_MAX_BYTES).read_until(b'\n', &mut line).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let answer = match serde_json::from_slice(&line) {
            Ok(call) => ask(&calls, call).await,
            Err(error) => Answer::refused(format!("the call cannot be read: {error}")),
        };
        let Ok(mut text) = serde_json::to_vec(&answer) else { return };
        text.push(b'\n');
        if writing.write_all(&text).await.is_err() {
            return;
        }
    }
}

async fn ask(calls: &mpsc::Sender<Asked>, call: Call) -> Answer {
    let (answer, answered) = oneshot::channel();
    let over = || Answer::refused("the task is over");
    if calls.send((call, answer)).await.is_err() {
        return over();
    }
    answered.await.unwrap_or_else(|_| over())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_user_enters_the_folder_of_the_sockets() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = private_folder().unwrap();
        let mode = std::fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{mode:o}");
    }
}
