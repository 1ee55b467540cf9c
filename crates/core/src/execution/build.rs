//! Builds: an execution whose policy says so is run to its end by the build of the program that started it.
//!
//! A worker names its build by a capability, `build:ID`. A pinned execution requires that capability, so that routing,
//! admission and explanations treat a build like anything else that a worker must have.

use super::Execution;
use crate::capability::CapabilitySet;
use crate::error::Result;

impl Execution {
    /// Pins it to the build of the worker that starts it, if its policy says so and it is not pinned yet.
    pub(super) fn pin_on_start(&mut self, build_id: &str) -> Result<()> {
        if self.policy.pin_build && self.pinned_build.is_empty() && !build_id.is_empty() {
            self.pin(self.capabilities.with_build(build_id)?, build_id);
        }
        Ok(())
    }

    /// An operator chooses the build that may run it from now on; with `None` the next build that takes it. A build
    /// that no worker can have, or for which the set of required capabilities has no room, is refused and changes
    /// nothing.
    pub fn repin(&mut self, build_id: Option<&str>, now: i64) -> Result<()> {
        self.refuse_terminal()?;
        let pinned = build_id.map(|build_id| Ok((self.required_capabilities().with_build(build_id)?, build_id)));
        let pinned = pinned.transpose()?;
        self.mark_updated(now);
        self.unpin();
        if let Some((capabilities, build_id)) = pinned {
            self.pin(capabilities, build_id);
        }
        self.settle();
        Ok(())
    }

    /// The capabilities that a worker must have, whatever its build.
    pub fn required_capabilities(&self) -> CapabilitySet {
        match self.pinned_build.is_empty() {
            true => self.capabilities.clone(),
            false => self.capabilities.without_build(&self.pinned_build),
        }
    }

    pub(super) fn unpin(&mut self) {
        self.capabilities = self.required_capabilities();
        self.pinned_build.clear();
    }

    fn pin(&mut self, capabilities: CapabilitySet, build_id: &str) {
        self.capabilities = capabilities;
        self.pinned_build = build_id.to_owned();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::event::Effects;
    use crate::execution::LostLease;
    use crate::execution::{Claim, NewExecution};
    use crate::id::LeaseId;
    use crate::policy::Policy;

    fn claim(build_id: &str) -> Claim {
        Claim {
            lease_id: LeaseId(Uuid::from_u128(1)),
            worker_id: "w".into(),
            instance_id: "w".into(),
            ttl_ms: 1_000,
            slot: None,
            build_id: build_id.into(),
        }
    }

    fn pinning() -> Execution {
        let mut execution = Execution { capabilities: CapabilitySet::new(["gpu"]).unwrap(), ..Default::default() };
        Arc::make_mut(&mut execution.policy).pin_build = true;
        execution
    }

    #[test]
    fn the_first_start_pins_and_an_operator_repins() {
        let mut execution = pinning();
        execution.claim(&claim("v1"), 1, &mut Effects::default()).unwrap();
        assert_eq!((execution.pinned_build.as_str(), execution.capabilities.route().as_str()), ("v1", "build:v1,gpu"));
        assert_eq!(execution.lease.as_ref().unwrap().build_id, "v1");
        execution.expire_lease(&LostLease::default(), 2, &mut Effects::default()).unwrap();
        execution.repin(Some("v2"), 3).unwrap();
        assert_eq!(execution.capabilities.route(), "build:v2,gpu");
        execution.repin(None, 4).unwrap();
        assert_eq!((execution.pinned_build.as_str(), execution.capabilities.route().as_str()), ("", "gpu"));
        execution.claim(&claim("v3"), 5, &mut Effects::default()).unwrap();
        assert_eq!(execution.pinned_build, "v3", "the next build that takes it is the one");
        execution.check().unwrap();
    }

    #[test]
    fn a_build_that_no_worker_can_have_is_refused_and_unpins_nothing() {
        let mut execution = pinning();
        execution.claim(&claim("v1"), 1, &mut Effects::default()).unwrap();
        let before = execution.clone();
        for impossible in ["v2,beta", "v 2", ""] {
            let refused = execution.repin(Some(impossible), 3).unwrap_err();
            assert_eq!(refused.code, crate::Code::InvalidCapabilities, "{impossible:?}");
            assert_eq!(execution, before);
        }
        let most = (0..crate::limits::CAPABILITIES_MAX_TOKENS).map(|number| format!("c{number}"));
        let mut full = Execution { capabilities: CapabilitySet::new(most).unwrap(), ..Default::default() };
        assert_eq!(full.repin(Some("v1"), 3).unwrap_err().code, crate::Code::InvalidCapabilities);
    }

    #[test]
    fn without_the_policy_or_a_build_nothing_is_pinned() {
        let mut plain = Execution::default();
        plain.claim(&claim("v1"), 1, &mut Effects::default()).unwrap();
        assert!(plain.pinned_build.is_empty() && plain.capabilities.is_empty());
        let mut execution = pinning();
        execution.claim(&claim(""), 1, &mut Effects::default()).unwrap();
        assert!(execution.pinned_build.is_empty());
    }

    #[test]
    fn a_requirement_that_leaves_no_room_for_a_build_is_refused() {
        let request = |count: usize, pin_build: bool| NewExecution {
            id: Default::default(),
            namespace: "n".into(),
            lane: "l".into(),
            kind: "k".into(),
            priority: 0,
            creator: String::new(),
            submitted_by: String::new(),
            idempotency_key: String::new(),
            tags: Default::default(),
            policy: Arc::new(Policy { pin_build, ..Default::default() }),
            capabilities: CapabilitySet::new((0..count).map(|number| format!("c{number}"))).unwrap(),
            budgets: Vec::new(),
            quota: None,
            input: Default::default(),
            delay_until: None,
            deadline_at: None,
            flow: None,
            node: String::new(),
            request_hash: Default::default(),
            trace_context: String::new(),
            schedule: None,
            sharing: Default::default(),
        };
        let most = crate::limits::CAPABILITIES_MAX_TOKENS;
        Execution::create(request(most, false), 1).unwrap();
        Execution::create(request(most - 1, true), 1).unwrap();
        assert_eq!(Execution::create(request(most, true), 1).unwrap_err().code, crate::Code::InvalidCapabilities);
    }
}
