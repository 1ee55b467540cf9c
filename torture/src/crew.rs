//! The worker processes: the program of the campaign itself, started again with a word in its environment.

use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fleet::signal;
use crate::workload::WorkerOptions;

/// How a worker process is started: the program and its arguments.
#[derive(Debug, Clone)]
pub struct Launch(pub Vec<String>);

/// Several workers.
#[derive(Debug)]
pub struct Crew {
    launch: Launch,
    members: Vec<WorkerOptions>,
    processes: Mutex<Vec<Option<Child>>>,
    victim: AtomicUsize,
}

impl Crew {
    /// Starts so many.
    pub fn start(launch: Launch, workers: usize, options: &WorkerOptions) -> Result<Self, String> {
        let members = (0..workers).map(|number| WorkerOptions { number, ..options.clone() }).collect();
        let processes = Mutex::new((0..workers).map(|_| None).collect());
        let crew = Self { launch, members, processes, victim: AtomicUsize::new(0) };
        (0..workers).try_for_each(|number| crew.restart(number))?;
        Ok(crew)
    }

    /// Starts a worker that is down.
    pub fn restart(&self, number: usize) -> Result<(), String> {
        let [program, arguments @ ..] = &self.launch.0[..] else { return Err("no program is named".to_owned()) };
        let (name, told) = self.members[number].variable();
        let mut command = Command::new(program);
        command.args(arguments).env(name, told).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().map_err(|why| format!("{program}: {why}"))?;
        self.processes.lock().expect("no holder of this lock panics")[number] = Some(child);
        Ok(())
    }

    /// Kills a worker; says which.
    pub fn kill(&self) -> usize {
        let victim = self.next_victim();
        let child = self.processes.lock().expect("no holder of this lock panics")[victim].take();
        if let Some(mut child) = child {
            // One that ended by itself is gone as well.
            let _ = child.kill();
            let _ = child.wait();
        }
        victim
    }

    /// Stops a quarter of the workers where they are, and gives their process ids to let them go on.
    pub fn freeze(&self) -> Vec<u32> {
        let victims: Vec<usize> = (0..self.members.len().div_ceil(4)).map(|_| self.next_victim()).collect();
        let processes = self.processes.lock().expect("no holder of this lock panics");
        let pids = victims.into_iter().filter_map(|victim| processes[victim].as_ref().map(Child::id));
        pids.inspect(|pid| signal("-STOP", *pid)).collect()
    }

    /// Ends all of them in an orderly way: their standard input closes.
    pub fn stop(&self) {
        let mut processes = self.processes.lock().expect("no holder of this lock panics");
        for child in processes.iter_mut().flatten() {
            drop(child.stdin.take());
        }
        for child in processes.iter_mut().filter_map(Option::take) {
            let mut child = child;
            let _ = child.wait();
        }
    }

    fn next_victim(&self) -> usize {
        let victim = self.victim.load(Ordering::SeqCst);
        self.victim.store((victim + 1) % self.members.len(), Ordering::SeqCst);
        victim
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for child in self.processes.lock().expect("no holder of this lock panics").iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
