//! The courier sends webhooks. The engine has no network: a program brings the [`Courier`].

use std::fmt;

use bytes::Bytes;

use crate::env::BoxFuture;

/// A request that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Where to.
    pub url: String,
    /// Headers beside those of every request.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: Bytes,
}

/// Why a webhook did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// In words.
    pub reason: String,
    /// The category of the failure; see [`ff_core::subscription::PERMANENT_CATEGORIES`].
    pub category: &'static str,
    /// When the receiver wants it again.
    pub retry_after_ms: Option<i64>,
}

/// Sends webhooks.
pub trait Courier: fmt::Debug + Send + Sync + 'static {
    /// Sends one; the status of an answer that says that it was received.
    fn send(&self, webhook: Webhook) -> BoxFuture<'static, std::result::Result<u16, Undelivered>>;
}
