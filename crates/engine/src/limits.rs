//! Limits that a deployment may draw tighter. The constants of [`ff_core::limits`] are what stores, ids and documents
//! are built for: they are the defaults, and the most that can be asked for.

use ff_core::capability::CapabilitySet;
use ff_core::op::parts::Renewal;
use ff_core::planted::{Bug, planted};
use ff_core::{Error, Result, limits, text};

/// The limits of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Input of an execution.
    pub input_max_bytes: usize,
    /// Result of an attempt.
    pub result_max_bytes: usize,
    /// Payload of one signal.
    pub signal_payload_max_bytes: usize,
    /// Payload of one stream frame.
    pub frame_max_bytes: usize,
    /// Capability tokens in one set.
    pub capabilities_max_tokens: usize,
    /// Bytes of one capability set.
    pub capabilities_max_bytes: usize,
    /// Lease TTL when none is given.
    pub lease_ttl_default_ms: i64,
    /// Shortest lease TTL.
    pub lease_ttl_min_ms: i64,
    /// Longest lease TTL.
    pub lease_ttl_max_ms: i64,
    /// Grant TTL when none is given.
    pub grant_ttl_default_ms: i64,
    /// Longest wait of a claim for work.
    pub claim_wait_max_ms: i64,
    /// Longest wait for a frame, an event or the end of an execution.
    pub tail_wait_max_ms: i64,
    /// Frames one read may ask for.
    pub stream_read_max: usize,
    /// Page size when none is given.
    pub page_default: usize,
    /// Largest page.
    pub page_max: usize,
    /// Events the deployment keeps, spread over its partitions.
    pub events_kept: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            input_max_bytes: limits::INPUT_MAX_BYTES,
            result_max_bytes: limits::RESULT_MAX_BYTES,
            signal_payload_max_bytes: limits::SIGNAL_PAYLOAD_MAX_BYTES,
            frame_max_bytes: limits::FRAME_MAX_BYTES,
            capabilities_max_tokens: limits::CAPABILITIES_MAX_TOKENS,
            capabilities_max_bytes: limits::CAPABILITIES_MAX_BYTES,
            lease_ttl_default_ms: limits::LEASE_TTL_DEFAULT_MS,
            lease_ttl_min_ms: limits::LEASE_TTL_MIN_MS,
            lease_ttl_max_ms: limits::LEASE_TTL_MAX_MS,
            grant_ttl_default_ms: limits::GRANT_TTL_DEFAULT_MS,
            claim_wait_max_ms: limits::CLAIM_WAIT_MAX_MS,
            tail_wait_max_ms: limits::TAIL_WAIT_MAX_MS,
            stream_read_max: limits::STREAM_READ_MAX,
            page_default: limits::PAGE_DEFAULT,
            page_max: limits::PAGE_MAX,
            events_kept: limits::EVENTS_KEPT,
        }
    }
}

impl Limits {
    /// Refuses limits that are wider than what the system is built for, or that leave nothing possible.
    pub fn validate(&self) -> Result<()> {
        let most = Self::default();
        for (name, value, max) in [
            ("input_max_bytes", self.input_max_bytes, most.input_max_bytes),
            ("result_max_bytes", self.result_max_bytes, most.result_max_bytes),
            ("signal_payload_max_bytes", self.signal_payload_max_bytes, most.signal_payload_max_bytes),
            ("frame_max_bytes", self.frame_max_bytes, most.frame_max_bytes),
            ("capabilities_max_tokens", self.capabilities_max_tokens, most.capabilities_max_tokens),
            ("capabilities_max_bytes", self.capabilities_max_bytes, most.capabilities_max_bytes),
            ("stream_read_max", self.stream_read_max, most.stream_read_max),
            ("page_max", self.page_max, most.page_max),
            ("page_default", self.page_default, self.page_max),
        ] {
            text::within(name, value, 1..=max)?;
        }
        text::within("lease_ttl_min_ms", self.lease_ttl_min_ms, most.lease_ttl_min_ms..=most.lease_ttl_max_ms)?;
        text::within("lease_ttl_max_ms", self.lease_ttl_max_ms, self.lease_ttl_min_ms..=most.lease_ttl_max_ms)?;
        self.lease_ttl(Some(self.lease_ttl_default_ms)).map_err(|error| {
            let detail = format!("must be between lease_ttl_min_ms and lease_ttl_max_ms: {}", error.detail);
            Error::invalid("lease_ttl_default_ms", detail)
        })?;
        text::within("grant_ttl_default_ms", self.grant_ttl_default_ms, 1..=limits::GRANT_TTL_MAX_MS)?;
        text::within("claim_wait_max_ms", self.claim_wait_max_ms, 0..=most.claim_wait_max_ms)?;
        text::within("tail_wait_max_ms", self.tail_wait_max_ms, 0..=most.tail_wait_max_ms)?;
        text::within("events_kept", self.events_kept, limits::EVENTS_PER_PARTITION_MIN..=EVENTS_KEPT_MAX)
    }

    /// The size of a page that was asked for, or the usual one.
    pub(crate) fn page(&self, limit: Option<usize>) -> Result<usize> {
        let limit = limit.unwrap_or(self.page_default);
        text::within("limit", limit, 1..=self.page_max)?;
        Ok(limit)
    }

    /// The number of frames that was asked for, or the usual one.
    pub(crate) fn frames(&self, count: Option<usize>) -> Result<usize> {
        let count = count.unwrap_or(self.page_default.min(self.stream_read_max));
        text::within("limit", count, 1..=self.stream_read_max)?;
        Ok(count)
    }

    /// The TTL of a lease that was asked for, or the usual one.
    pub(crate) fn lease_ttl(&self, ttl_ms: Option<i64>) -> Result<i64> {
        let ttl_ms = ttl_ms.unwrap_or(self.lease_ttl_default_ms);
        text::within("lease_ttl_ms", ttl_ms, self.lease_ttl_min_ms..=self.lease_ttl_max_ms)?;
        Ok(ttl_ms)
    }

    /// Refuses renewals, in a field, that ask for another TTL than a lease may have.
    pub(crate) fn renewals(&self, field: &str, renewals: &[Renewal]) -> Result<()> {
        for (place, renewal) in renewals.iter().enumerate().filter(|(_, renewal)| renewal.lease_ttl_ms.is_some()) {
            self.lease_ttl(renewal.lease_ttl_ms).map_err(|error| error.inside(&format!("{field}[{place}]")))?;
        }
        Ok(())
    }

    /// How long a claim may wait that asks for this.
    pub(crate) fn claim_wait(&self, wait_ms: Option<i64>) -> Result<i64> {
        let wait_ms = wait_ms.unwrap_or(0);
        text::within("wait_ms", wait_ms, 0..=self.claim_wait_max_ms)?;
        Ok(if planted(Bug::ClaimOverstays) { wait_ms + 5_000 } else { wait_ms })
    }

    /// How long another long poll may wait that asks for this in a field.
    pub(crate) fn tail_wait(&self, field: &str, wait_ms: i64) -> Result<i64> {
        text::within(field, wait_ms, 0..=self.tail_wait_max_ms)?;
        Ok(wait_ms)
    }

    pub(crate) fn capabilities(&self, set: &CapabilitySet) -> Result<()> {
        if set.len() > self.capabilities_max_tokens {
            return Err(text::too_many("capabilities", set.len(), self.capabilities_max_tokens));
        }
        let bytes = set.bytes();
        if bytes > self.capabilities_max_bytes {
            return Err(Error::too_large("capabilities", bytes, self.capabilities_max_bytes));
        }
        Ok(())
    }
}

/// Past this a deployment's logs of events outweigh its executions.
const EVENTS_KEPT_MAX: u64 = 100_000_000;

/// Refuses more bytes than there may be.
pub(crate) fn bytes(field: &str, size: usize, max: usize) -> Result<()> {
    if size > max { Err(Error::too_large(field, size, max)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_drawn_tighter_and_never_wider() {
        Limits::default().validate().unwrap();
        Limits { input_max_bytes: 10, page_max: 5, page_default: 5, ..Limits::default() }.validate().unwrap();
        for (limits, field) in [
            (Limits { input_max_bytes: limits::INPUT_MAX_BYTES + 1, ..Limits::default() }, "input_max_bytes"),
            (Limits { frame_max_bytes: 0, ..Limits::default() }, "frame_max_bytes"),
            (Limits { page_max: 5, ..Limits::default() }, "page_default"),
            (Limits { lease_ttl_min_ms: 1, ..Limits::default() }, "lease_ttl_min_ms"),
            (Limits { lease_ttl_max_ms: 2_000, ..Limits::default() }, "lease_ttl_default_ms"),
            (Limits { claim_wait_max_ms: 30_001, ..Limits::default() }, "claim_wait_max_ms"),
            (Limits { events_kept: 1, ..Limits::default() }, "events_kept"),
        ] {
            assert_eq!(limits.validate().unwrap_err().details["field"], field);
        }
    }
}
