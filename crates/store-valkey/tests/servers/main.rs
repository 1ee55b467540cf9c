//! The store on servers that fail, fill up, move and come in odd versions.

mod failover;
mod hints;
mod library;
mod listing;
mod support;
mod tiers;
mod tls;
