//! Calls that are written down, and repeated at one server after another until one says yes or no.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::history::{Answer, Recorder};
use crate::http::Client;

/// A call is repeated for so long while no server answers.
const INSIST: Duration = Duration::from_secs(60);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(50);

/// What is called, and what the history says about it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The name in the history.
    pub call: &'static str,
    /// Where.
    pub path: String,
    /// With what.
    pub body: Value,
    /// What identifies it.
    pub about: Value,
}

/// An answer that says yes or no.
#[derive(Debug)]
pub struct Reply {
    /// Whether it says yes.
    pub accepted: bool,
    /// The body: of a refusal, its problem.
    pub body: Value,
}

impl Reply {
    /// The code of a refusal.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

/// A caller with connections of its own.
#[derive(Debug)]
pub struct Caller {
    servers: Vec<String>,
    recorder: Arc<Recorder>,
    client: Client,
    /// The server that is called next.
    turn: usize,
}

impl Caller {
    /// Callers with different numbers begin at different servers.
    pub fn new(servers: &[String], recorder: &Arc<Recorder>, number: usize) -> Self {
        Self { servers: servers.to_vec(), recorder: recorder.clone(), client: Client::default(), turn: number }
    }

    /// The answer of one server; `None` when it is not known what became of the call.
    pub fn once(&mut self, request: &Request) -> Option<Reply> {
        let number = self.recorder.began(request.call, &request.about);
        let address = &self.servers[self.turn % self.servers.len()];
        let answer = self.client.request(address, &format!("POST {}", request.path), &request.body);
        let Some((status, text)) = answer else {
            self.recorder.ended(number, Answer::Unknown, 0, &Value::Null);
            self.turn += 1;
            return None;
        };
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        // A server that is not able to now does not say that nothing happened.
        if status >= 500 || status == 429 {
            self.recorder.ended(number, Answer::Unknown, status, &body);
            self.turn += 1;
            return None;
        }
        let accepted = (200..300).contains(&status);
        self.recorder.ended(number, if accepted { Answer::Accepted } else { Answer::Refused }, status, &body);
        Some(Reply { accepted, body })
    }

    /// The answer of any server; `None` when no server gave one for long.
    pub fn insist(&mut self, request: &Request) -> Option<Reply> {
        let began = Instant::now();
        while began.elapsed() < INSIST {
            if let Some(reply) = self.once(request) {
                return Some(reply);
            }
            thread::sleep(AGAIN);
        }
        None
    }

    /// A look that is not part of the history: the answer of any server, `None` where it says that there is nothing.
    pub fn look(&mut self, path: &str) -> Option<String> {
        let began = Instant::now();
        while began.elapsed() < INSIST {
            let address = &self.servers[self.turn % self.servers.len()];
            match self.client.request(address, &format!("GET {path}"), &Value::Null) {
                Some((200, text)) => return Some(text),
                Some((404, _)) => return None,
                _ => {
                    self.turn += 1;
                    thread::sleep(AGAIN);
                }
            }
        }
        None
    }

    /// A look whose answer is JSON.
    pub fn look_json(&mut self, path: &str) -> Option<Value> {
        self.look(path).and_then(|text| serde_json::from_str(&text).ok())
    }
}
