//! Everything that was said, one JSON object a line. A process writes a line before each call and one after it, so that a
//! call of a process that was killed in between is there without its end, and counts as unknown.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::instant::now_ms;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It took effect.
    Accepted,
    /// It did not.
    Refused,
    /// It is not known whether it took effect.
    Unknown,
}

impl Answer {
    fn as_str(self) -> &'static str {
        match self {
            Answer::Accepted => "accepted",
            Answer::Refused => "refused",
            Answer::Unknown => "unknown",
        }
    }
}

/// Writes the history of one process.
#[derive(Debug)]
pub struct Recorder {
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// Goes on with the file of this name in the folder. A worker that was killed and started again has a further part.
    pub fn open(folder: &Path, who: &str) -> Result<Self, String> {
        let path = folder.join(format!("history-{who}-{}.jsonl", std::process::id()));
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Self { file: Mutex::new(file), next: AtomicU64::new(0) })
    }

    fn write(&self, line: &Value) {
        // One write for each line, so that a kill leaves whole lines.
        let text = format!("{line}\n");
        let written = self.file.lock().expect("no holder of this lock panics").write_all(text.as_bytes());
        written.expect("a history that cannot be written is no history");
    }

    /// A call begins. `about` holds what identifies it.
    pub fn began(&self, call: &str, about: &Value) -> u64 {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        self.write(&json!({ "began": number, "at": now_ms(), "call": call, "about": about }));
        number
    }

    /// A call ended. `shown` holds what its answer said.
    pub fn ended(&self, number: u64, answer: Answer, status: u16, shown: &Value) {
        self.write(
            &json!({ "ended": number, "at": now_ms(), "answer": answer.as_str(), "status": status, "shown": shown }),
        );
    }

    /// Something that is no call: a fault, a sample.
    pub fn note(&self, what: &str, about: &Value) {
        self.write(&json!({ "note": what, "at": now_ms(), "about": about }));
    }
}

/// A call as the history tells it.
#[derive(Debug, Clone)]
pub struct Call {
    /// What was called.
    pub call: String,
    /// What identifies it.
    pub about: Value,
    /// When it was sent, at the earliest.
    pub began: i64,
    /// When its answer was read; for a call without one, the end of time.
    pub ended: i64,
    /// How it ended.
    pub answer: Answer,
    /// Its status; zero without an answer.
    pub status: u16,
    /// What the answer said.
    pub shown: Value,
}

impl Call {
    /// Whether it was acknowledged.
    pub fn accepted(&self) -> bool {
        self.answer == Answer::Accepted
    }

    /// A text of what identifies it.
    pub fn about(&self, name: &str) -> &str {
        self.about[name].as_str().unwrap_or_default()
    }

    /// The code of its refusal.
    pub fn code(&self) -> &str {
        self.shown["code"].as_str().unwrap_or("no_code")
    }
}

/// Something that is no call.
#[derive(Debug, Clone)]
pub struct Note {
    /// What it is.
    pub what: String,
    /// When it was written.
    pub at: i64,
    /// More about it.
    pub about: Value,
}

/// The whole history of a campaign, or what was added to it since one last looked.
#[derive(Debug, Default)]
pub struct History {
    /// By the time that they began.
    pub calls: Vec<Call>,
    /// By their time.
    pub notes: Vec<Note>,
}

impl History {
    /// Reads all files of a folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let mut follower = Follower::new(folder);
        let mut history = follower.news()?;
        for process in follower.processes.into_values() {
            history.calls.extend(process.open.into_values());
        }
        history.calls.sort_by_key(|call| call.began);
        history.notes.sort_by_key(|note| note.at);
        Ok(history)
    }
}

/// Reads a history while it is written.
#[derive(Debug)]
pub struct Follower {
    folder: PathBuf,
    processes: BTreeMap<PathBuf, Process>,
}

/// The file of one process, as far as it was read.
#[derive(Debug, Default)]
struct Process {
    bytes: u64,
    /// Calls whose end was not read yet.
    open: BTreeMap<u64, Call>,
}

impl Follower {
    /// Begins with the first line of every file.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), processes: BTreeMap::new() }
    }

    /// Calls that ended and notes that were made since the last time.
    pub fn news(&mut self) -> Result<History, String> {
        let mut news = History::default();
        for path in files(&self.folder)? {
            let process = self.processes.entry(path.clone()).or_default();
            process.read(&path, &mut news).map_err(|why| format!("{}: {why}", path.display()))?;
        }
        Ok(news)
    }
}

impl Process {
    fn read(&mut self, path: &Path, news: &mut History) -> Result<(), String> {
        let mut file = File::open(path).map_err(|why| why.to_string())?;
        file.seek(SeekFrom::Start(self.bytes)).map_err(|why| why.to_string())?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|why| why.to_string())?;
        // A line that is being written is read the next time.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.bytes += text.len() as u64;
        self.add(std::str::from_utf8(&text).map_err(|why| why.to_string())?, news)
    }

    fn add(&mut self, text: &str, news: &mut History) -> Result<(), String> {
        for line in text.lines() {
            let mut line: Value = serde_json::from_str(line).map_err(|why| format!("{line}: {why}"))?;
            let at = line["at"].as_i64().unwrap_or_default();
            if let Some(number) = line["began"].as_u64() {
                let call = line["call"].as_str().unwrap_or_default().to_owned();
                let (about, answer) = (line["about"].take(), Answer::Unknown);
                let call = Call { call, about, began: at, ended: i64::MAX, answer, status: 0, shown: Value::Null };
                self.open.insert(number, call);
            } else if let Some(number) = line["ended"].as_u64() {
                let mut call = self.open.remove(&number).ok_or(format!("call {number} ends and never began"))?;
                call.answer = match line["answer"].as_str() {
                    Some("accepted") => Answer::Accepted,
                    Some("refused") => Answer::Refused,
                    _ => Answer::Unknown,
                };
                // A call without an answer may take effect any time.
                call.ended = if call.answer == Answer::Unknown { i64::MAX } else { at };
                call.status = line["status"].as_u64().and_then(|status| status.try_into().ok()).unwrap_or(0);
                call.shown = line["shown"].take();
                news.calls.push(call);
            } else if let Some(what) = line["note"].as_str() {
                let what = what.to_owned();
                news.notes.push(Note { what, at, about: line["about"].take() });
            }
        }
        Ok(())
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let is_history = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            name.starts_with("history-") && Path::new(name).extension().is_some_and(|end| end == "jsonl")
        })
    };
    let mut files: Vec<PathBuf> = paths.filter(is_history).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: &str = "{\"began\":0,\"at\":5,\"call\":\"submit\",\"about\":{\"key\":\"a\"}}\n\
                         {\"began\":1,\"at\":6,\"call\":\"submit\",\"about\":{\"key\":\"b\"}}\n";
    const ENDED: &str = "{\"ended\":1,\"at\":9,\"answer\":\"accepted\",\"status\":201,\"shown\":{\"id\":\"x\"}}\n\
                         {\"note\":\"fault\",\"at\":7,\"about\":{}}\n";

    /// A folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ff-torture-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn a_call_without_an_end_is_unknown_and_may_take_effect_any_time() {
        let folder = folder("unknown");
        std::fs::write(folder.join("history-a.jsonl"), format!("{BEGAN}{ENDED}")).expect("it is written");
        let history = History::read(&folder).expect("it reads");
        let [a, b] = &history.calls[..] else { panic!("{history:?}") };
        assert_eq!((a.answer, a.ended, a.about("key")), (Answer::Unknown, i64::MAX, "a"));
        assert_eq!((b.answer, b.ended, b.status), (Answer::Accepted, 9, 201));
        assert_eq!(history.notes.len(), 1);
        std::fs::write(folder.join("history-a.jsonl"), "{\"ended\":7,\"at\":1}\n").expect("it is written");
        assert!(History::read(&folder).is_err());
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn a_follower_tells_every_call_once_when_it_has_ended() {
        let folder = folder("follower");
        let path = folder.join("history-a.jsonl");
        let (half, rest) = ENDED.split_at(10);
        let mut follower = Follower::new(&folder);
        std::fs::write(&path, format!("{BEGAN}{half}")).expect("it is written");
        assert!(follower.news().expect("it reads").calls.is_empty());
        std::fs::write(&path, format!("{BEGAN}{half}{rest}")).expect("it is written");
        let news = follower.news().expect("it reads");
        assert_eq!((news.calls.len(), news.notes.len(), news.calls[0].about("key")), (1, 1, "b"));
        let none = follower.news().expect("it reads");
        assert!(none.calls.is_empty() && none.notes.is_empty());
        let _ = std::fs::remove_dir_all(folder);
    }
}
