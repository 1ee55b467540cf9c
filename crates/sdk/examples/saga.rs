//! A trip of three bookings: what fails is taken back, in reverse order, and a crash in the middle changes nothing.
//! `cargo run --example saga -- [URL]`

use flowfabric::{Client, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Trip {
    to: String,
}

/// Stands for three services. The last one is full.
async fn book(what: &str, to: &str) -> Result<String, TaskError> {
    if what == "car" {
        return Err(TaskError::new("no cars are left").category("sold_out"));
    }
    println!("booked: {what} to {to}");
    Ok(format!("{what}-1"))
}

async fn give_back(booking: &str) -> Result<(), TaskError> {
    println!("given back: {booking}");
    Ok(())
}

#[flowfabric::task]
async fn travel(ctx: TaskContext, trip: Trip) -> Result<Vec<String>, TaskError> {
    let mut booked: Vec<String> = Vec::new();
    for what in ["flight", "hotel", "car"] {
        match ctx.step("book", || book(what, &trip.to)).key(what).await {
            Ok(booking) => booked.push(booking),
            // A failure that was caught stays as it was: a crash from here on goes on with giving back.
            Err(failure) => {
                for booking in booked.iter().rev() {
                    ctx.step("give back", || give_back(booking)).key(booking).await?;
                }
                return Err(failure);
            }
        }
    }
    Ok(booked)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://".into());
    let client = Client::connect(&url).await?.in_namespace("saga");
    let worker = WorkerRuntime::new(WorkerConfig::new("travel")).serve(travel).start(&client).await?;
    let trip = client.submit(Trip { to: "Lisbon".into() }).with(|it| it.never_retry(["sold_out"])).send().await?;
    let ended = trip.wait().await?;
    println!(
        "the trip {}: {}",
        ended.public_state,
        ended.last_failure.map(|failure| failure.reason).unwrap_or_default()
    );
    Ok(worker.stop().await?)
}
