//! The store on servers that fail, fill up, move and come in odd versions.

mod clock;
mod failover;
mod hints;
mod joint;
mod library;
mod listing;
mod moving;
mod primary;
mod shared_history;
mod support;
mod tiers;
mod tls;
