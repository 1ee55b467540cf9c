//! Words of a program on standard error, line by line, as frames of its task's stream.

use std::time::Duration;

use flowfabric::{Frame, FrameWriter, limits};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::task::content_type;

/// The type of these frames.
const FRAME_TYPE: &str = "log";
/// As much of the last line as a failure's reason shows.
const LAST_WORDS_MAX_CHARS: usize = 500;
/// Words that were written before now are in the pipe; it takes the runtime one look to see them.
const ONE_LOOK: Duration = Duration::from_millis(5);

enum Note {
    /// Store everything that was said so far, then be silent.
    Flush(oneshot::Sender<()>),
    /// Speak again.
    Writer(FrameWriter),
}

/// A listener to a program's standard error.
pub(super) struct Words {
    notes: mpsc::Sender<Note>,
    listening: JoinHandle<String>,
}

impl Words {
    pub(super) fn listen(stderr: ChildStderr, writer: FrameWriter) -> Self {
        let (notes, waiting) = mpsc::channel(1);
        let listener = Listener { stderr, writer: Some(writer), lines: Lines::default(), last: String::new() };
        Self { notes, listening: tokio::spawn(listener.listen(waiting)) }
    }

    /// Stores what was said so far. Later words are dropped, because the lease is about to be given away.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.notes.send(Note::Flush(done)).await.is_ok() {
            // A listener that has ended has stored everything.
            let _ = flushed.await;
        }
    }

    /// Goes on after a flush.
    pub(super) async fn go_on(&self, writer: FrameWriter) {
        let _ = self.notes.send(Note::Writer(writer)).await;
    }

    /// Waits until the program has said everything and it is stored; answers with its last line. `None` when
    /// something still holds the pipe after this time.
    pub(super) async fn last(&mut self, wait_max: Duration) -> Option<String> {
        let listened = tokio::time::timeout(wait_max, &mut self.listening).await.ok()?;
        Some(listened.unwrap_or_default())
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

struct Listener {
    stderr: ChildStderr,
    writer: Option<FrameWriter>,
    lines: Lines,
    last: String,
}

impl Listener {
    async fn listen(mut self, mut notes: mpsc::Receiver<Note>) -> String {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            tokio::select! {
                biased;
                read = self.stderr.read(&mut buffer) => match read {
                    Ok(count @ 1..) => self.hear(&buffer[..count]).await,
                    Ok(0) | Err(_) => break,
                },
                Some(note) = notes.recv() => match note {
                    Note::Flush(done) => {
                        while let Ok(Ok(count @ 1..)) =
                            tokio::time::timeout(ONE_LOOK, self.stderr.read(&mut buffer)).await
                        {
                            self.hear(&buffer[..count]).await;
                        }
                        self.finish().await;
                        let _ = done.send(());
                    }
                    Note::Writer(writer) => self.writer = Some(writer),
                },
            }
        }
        if let Some(rest) = self.lines.rest() {
            self.say(rest).await;
        }
        self.finish().await;
        self.last
    }

    async fn hear(&mut self, bytes: &[u8]) {
        for line in self.lines.push(bytes) {
            self.say(line).await;
        }
    }

    async fn say(&mut self, line: Vec<u8>) {
        if !line.iter().all(u8::is_ascii_whitespace) {
            self.last = shown(&line);
        }
        if let Some(writer) = &self.writer {
            let content_type = content_type(&line);
            // It is only the lease that can be lost, and then the task's token says so.
            let _ = writer.write(Frame::bytes(FRAME_TYPE, line, content_type)).await;
        }
    }

    async fn finish(&mut self) {
        if let Some(writer) = self.writer.take()
            && let Err(error) = writer.finish().await
        {
            tracing::warn!(%error, "lines of standard error are not stored");
        }
    }
}

fn shown(line: &[u8]) -> String {
    let text = std::str::from_utf8(line).map_or_else(|_| line.escape_ascii().to_string(), str::to_owned);
    text.trim().chars().filter(|c| !c.is_control()).take(LAST_WORDS_MAX_CHARS).collect()
}

/// Bytes in lines. A line that is too long for a frame is several.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for &byte in bytes {
            if byte == b'\n' {
                lines.push(std::mem::take(&mut self.begun));
                continue;
            }
            self.begun.push(byte);
            if self.begun.len() == limits::FRAME_MAX_BYTES {
                lines.push(std::mem::take(&mut self.begun));
            }
        }
        lines
    }

    /// The bytes after the last end of line.
    fn rest(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.begun)).filter(|rest| !rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_their_ends_and_at_the_size_of_a_frame() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"one\ntw"), [b"one".to_vec()]);
        assert_eq!(lines.push(b"o\n\n"), [b"two".to_vec(), Vec::new()]);
        assert_eq!(lines.rest(), None);
        let long = vec![b'x'; limits::FRAME_MAX_BYTES + 1];
        assert_eq!(lines.push(&long), [vec![b'x'; limits::FRAME_MAX_BYTES]]);
        assert_eq!(lines.rest(), Some(b"x".to_vec()));
    }

    #[test]
    fn last_words_are_readable_whatever_they_were() {
        assert_eq!(shown(b"  no such file\r"), "no such file");
        assert_eq!(shown(b"\xff!"), "\\xff!");
    }
}
