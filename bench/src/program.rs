//! The program `ff-bench`: the scenarios on stores that it starts by itself, or on those that are named.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use ff_testkit::{postgres, valkey};

use crate::error::{Error, Result};
use crate::open::{Kind, NewFiles, Place, Places};
use crate::subject::Allocations;
use crate::{Arguments, measure};

#[derive(Debug, Parser)]
#[command(about = "Measures FlowFabric", arg_required_else_help = true)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

/// Runs it. An allocator that counts is told by a function that reads it.
pub fn program(allocations: Option<fn() -> Allocations>) -> ExitCode {
    let arguments = Command::parse().arguments;
    match measure(&arguments, &OurOwn { primaries: arguments.primaries, allocations }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ff-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Servers of our own, where temporary files go, and files beside the program.
struct OurOwn {
    primaries: Option<usize>,
    allocations: Option<fn() -> Allocations>,
}

impl Places for OurOwn {
    fn make(&self, kind: Kind, sync: &str) -> Result<Place> {
        if let (Kind::Valkey, Some(primaries)) = (kind, self.primaries) {
            if sync != "async" {
                return Err(Error::Usage(format!("--primaries makes a cluster without replicas and files: no {sync}")));
            }
            let cluster = valkey::Cluster::of_primaries(primaries);
            return Ok(Place { url: cluster.url(), keep: Box::new(cluster) });
        }
        Ok(match (kind, sync) {
            (Kind::Valkey, "replicated") => {
                let pair = valkey::Replicated::start();
                Place { url: pair.primary.url(), keep: Box::new(pair) }
            }
            (Kind::Valkey, "everysec") => {
                let server = valkey::Server::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
                Place { url: server.url(), keep: Box::new(server) }
            }
            (Kind::Valkey, _) => {
                let server = valkey::Server::start();
                Place { url: server.url(), keep: Box::new(server) }
            }
            (Kind::Postgres, _) => {
                let server = postgres::Server::start();
                Place { url: server.url(), keep: Box::new(server) }
            }
            (Kind::Sqlite | Kind::Memory, _) => NewFiles(beside_the_program()?).make(kind, sync)?,
        })
    }

    fn allocations(&self) -> Option<fn() -> Allocations> {
        self.allocations
    }
}

/// The system's directory for temporary files is often memory, where a sync costs nothing; the program's is a disk.
fn beside_the_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.parent().map_or_else(|| PathBuf::from("."), PathBuf::from))
}
