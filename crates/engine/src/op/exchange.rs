//! The calls of a busy worker in one. Its parts run beside each other, each as its own operation does, and what they
//! commit in one partition at the same time is one call of the store.

use std::sync::Arc;

use ff_core::op::{
    CancelExecution, Claim, ClaimArgs, Complete, ContinueAsNew, Delay, Exchange, ExchangeArgs, ExchangeClaimed,
    ExchangeEnded, ExchangeEnding, ExchangeOutcome, Fail, Operation, Park, Suspend, WaitChildren,
};
use ff_core::{Error, LeaseId, Result};
use futures_util::future::{Either, join, join_all, select};

use crate::caller::Caller;
use crate::env;
use crate::op::Handle;
use crate::op::capacity::Surplus;
use crate::op::lease::in_order;
use crate::scheduler::{Ask, Taken};
use crate::services::Services;
use crate::transaction::CallerGone;

/// When the endings and renewals of a call have their answers, its claim has this long to finish.
const CLAIM_PATIENCE_MS: i64 = 250;

impl Handle<Exchange> for Services {
    async fn handle(&self, caller: &Caller, args: ExchangeArgs) -> Result<ExchangeOutcome> {
        caller.namespace(args.namespace.as_deref())?;
        self.transactor.limits().renewals("renew", &args.renew)?;
        let (services, caller) = (self.clone(), caller.clone());
        let gone = Arc::<CallerGone>::default();
        let leaving = Arc::clone(&gone);
        // Parts that were begun are finished, and work that the caller does not receive is given back.
        let work = Box::pin(async move {
            let gathering = services.transactor.gather();
            let parts = Services {
                scheduler: services.scheduler.through(&gathering),
                shared: Arc::clone(&services.shared),
                transactor: gathering,
            };
            let exchanging = Box::pin(parts.exchange(&caller, args, &gone));
            let (outcome, fresh) = parts.transactor.run_parts(exchanging).await;
            if gone.is_said() && !fresh.is_empty() {
                Box::pin(services.scheduler.give_back(fresh)).await;
            }
            outcome
        });
        Ok(self.transactor.see_through_telling(leaving, work).await)
    }
}

/// The work that a claim of an exchange holds: its answer, and the part of it that this very call has taken.
struct ExchangedClaim {
    claimed: ExchangeClaimed,
    taken: Vec<Taken>,
}

impl ExchangedClaim {
    /// Nothing was claimable, and nothing went wrong.
    fn is_empty(&self) -> bool {
        let ExchangeClaimed { tasks, grants, problem } = &self.claimed;
        tasks.is_empty() && grants.is_empty() && problem.is_none()
    }
}

impl From<Error> for ExchangedClaim {
    fn from(error: Error) -> Self {
        Self { claimed: ExchangeClaimed { problem: Some(error), ..ExchangeClaimed::default() }, taken: Vec::new() }
    }
}

impl Services {
    /// Carries out all parts. Answers also with the work that must be given back if the caller does not receive the
    /// answer.
    async fn exchange(
        &self,
        caller: &Caller,
        mut args: ExchangeArgs,
        gone: &CallerGone,
    ) -> (ExchangeOutcome, Vec<Taken>) {
        let ends_nothing = args.end.is_empty();
        let said_something = !args.end.is_empty() || !args.renew.is_empty();
        let asked = args.take_claim();
        let ending = join_all(args.end.into_iter().enumerate().map(|(place, one)| self.end_one(caller, place, one)));
        let saying = Box::pin(join(ending, self.transactor.renew_all(caller, &args.renew)));
        let Some(asked) = asked else {
            let (end, renew) = saying.await;
            return (ExchangeOutcome { end, renew, claim: None }, Vec::new());
        };
        let ask = match self.ask_for(caller, &asked) {
            Ok(ask) => Arc::new(ask),
            Err(error) => {
                let (end, renew) = saying.await;
                return (ExchangeOutcome { end, renew, claim: Some(ExchangedClaim::from(error).claimed) }, Vec::new());
            }
        };
        let claiming = Box::pin(self.claim_in_exchange(caller, &asked, &ask, ends_nothing));
        let ((end, renew), held) = if said_something {
            match select(saying, claiming).await {
                Either::Left((said, mut claiming)) => {
                    let held = match env::within(self.transactor.env_handle(), CLAIM_PATIENCE_MS, &mut claiming).await {
                        Some(held) => held,
                        None => {
                            // It answers with what it has; what comes later is given back.
                            ask.gone.say();
                            claiming.await
                        }
                    };
                    (said, held)
                }
                Either::Right((held, saying)) => (saying.await, held),
            }
        } else {
            let held = match select(claiming, Box::pin(gone.heard())).await {
                Either::Left((held, _)) => held,
                Either::Right(((), claiming)) => {
                    ask.gone.say();
                    claiming.await
                }
            };
            (saying.await, held)
        };
        let stay = end.iter().filter(|ended| !ended.makes_room()).count();
        // Work that an ending has made claimable was not there yet when the claim looked.
        let held = match held.is_empty() && stay < end.len() && !ask.gone.is_said() {
            true => Box::pin(self.claim_in_exchange(caller, &asked, &ask, ends_nothing)).await,
            false => held,
        };
        let held = self.lower(held, asked.max_tasks().saturating_sub(stay)).await;
        let held = self.lower_to_capacity(&ask, held).await;
        (ExchangeOutcome { end, renew, claim: Some(held.claimed) }, held.taken)
    }

    async fn end_one(&self, caller: &Caller, place: usize, ending: ExchangeEnding) -> ExchangeEnded {
        // The parts of one call derive their identity from its key and their place.
        let keyed = caller.idempotency_key.as_ref();
        let keyed = keyed.map(|key| Caller { idempotency_key: Some(format!("{key}/{place}")), ..caller.clone() });
        let caller = keyed.as_ref().unwrap_or(caller);
        let ended = match ending {
            ExchangeEnding::Complete(args) => {
                self.carry_out::<Complete>(caller, args).await.map(ExchangeEnded::Complete)
            }
            ExchangeEnding::Fail(args) => self.carry_out::<Fail>(caller, args).await.map(ExchangeEnded::Fail),
            ExchangeEnding::Delay(args) => self.carry_out::<Delay>(caller, args).await.map(ExchangeEnded::Delay),
            ExchangeEnding::WaitChildren(args) => {
                self.carry_out::<WaitChildren>(caller, args).await.map(ExchangeEnded::WaitChildren)
            }
            ExchangeEnding::Suspend(args) => self.carry_out::<Suspend>(caller, *args).await.map(ExchangeEnded::Suspend),
            ExchangeEnding::Park(args) => self.carry_out::<Park>(caller, args).await.map(ExchangeEnded::Park),
            ExchangeEnding::ContinueAsNew(args) => {
                self.carry_out::<ContinueAsNew>(caller, args).await.map(ExchangeEnded::ContinueAsNew)
            }
            ExchangeEnding::Cancel(args) if args.fence.is_none() => {
                Err(Error::invalid("fence", "must be that of the lease that ends"))
            }
            ExchangeEnding::Cancel(args) => {
                self.carry_out::<CancelExecution>(caller, args).await.map(ExchangeEnded::Cancel)
            }
        };
        ended.unwrap_or_else(ExchangeEnded::Problem)
    }

    fn ask_for(&self, caller: &Caller, asked: &ClaimArgs) -> Result<Ask> {
        Claim::validate(asked)?;
        self.ask(caller, caller.namespace(asked.namespace.as_deref())?, asked)
    }

    async fn claim_in_exchange(
        &self,
        caller: &Caller,
        asked: &ClaimArgs,
        ask: &Arc<Ask>,
        ends_nothing: bool,
    ) -> ExchangedClaim {
        let held = self.try_claim_in_exchange(caller, asked, ask, ends_nothing).await;
        self.transactor.metrics().operation(Claim::NAME, held.as_ref().err().map(|error| error.code));
        held.unwrap_or_else(ExchangedClaim::from)
    }

    async fn try_claim_in_exchange(
        &self,
        caller: &Caller,
        asked: &ClaimArgs,
        ask: &Arc<Ask>,
        ends_nothing: bool,
    ) -> Result<ExchangedClaim> {
        if asked.lease_ids.is_empty() && caller.idempotency_key.is_some() {
            // Its lease ids derive from the key, and a record keeps it from taking something twice.
            let claimed = Box::pin(Handle::<Claim>::handle(self, caller, asked.clone())).await?;
            return Ok(ExchangedClaim { claimed: claimed.into(), taken: Vec::new() });
        }
        if asked.retry {
            Box::pin(self.scheduler.first_call_ended(ask)).await;
            if let Some(claimed) = Box::pin(self.held_before(ask)).await? {
                return Ok(ExchangedClaim { claimed: claimed.into(), taken: Vec::new() });
            }
        }
        if ends_nothing {
            Box::pin(self.check_room(ask)).await?;
        }
        let mut taken = self.scheduler.take_work(ask).await?;
        // The first call may have waited beside its repeat, and may have been the one that got the work.
        if asked.retry
            && taken.is_empty()
            && let Some(claimed) = Box::pin(self.held_before(ask)).await?
        {
            return Ok(ExchangedClaim { claimed: claimed.into(), taken: Vec::new() });
        }
        let (mut outcome, unread) = self.tasks(taken.clone()).await;
        let (unread, mut errors): (Vec<Taken>, Vec<Error>) = unread.into_iter().unzip();
        if let Some(error) = errors.pop() {
            let empty = outcome.tasks.is_empty() && outcome.grants.is_empty();
            Box::pin(self.scheduler.give_back(unread)).await;
            if empty {
                return Err(error);
            }
        }
        if asked.retry && !outcome.tasks.is_empty() {
            outcome = Box::pin(self.keep_one_of_each(ask, outcome)).await?;
            taken.retain(|one| outcome.tasks.iter().any(|task| task.execution_id == one.execution_id()));
        }
        Ok(ExchangedClaim { claimed: in_order(outcome, ask).into(), taken })
    }

    /// Gives back what is beyond the capacity that the worker named when it registered.
    async fn lower_to_capacity(&self, ask: &Ask, held: ExchangedClaim) -> ExchangedClaim {
        let taken = held.taken.len().min(held.claimed.tasks.len());
        match Box::pin(self.beyond_capacity(ask, taken)).await {
            Ok(Surplus::Some { over, refusal, _turn }) => {
                let room = held.claimed.tasks.len().saturating_sub(over);
                let mut held = self.lower(held, room).await;
                if room == 0 {
                    held.claimed.problem = Some(refusal);
                }
                held
            }
            // What cannot be counted is the worker's own business, as for a claim.
            Ok(Surplus::None) | Err(_) => held,
        }
    }

    /// Gives back what the worker has no room for.
    async fn lower(&self, mut held: ExchangedClaim, room: usize) -> ExchangedClaim {
        let surplus = held.claimed.tasks.split_off(held.claimed.tasks.len().min(room));
        let grants = held.claimed.grants.split_off(held.claimed.grants.len().min(room));
        if surplus.is_empty() && grants.is_empty() {
            return held;
        }
        let ids: Vec<LeaseId> = surplus.iter().map(|task| task.fence.lease_id).collect();
        let ids: Vec<LeaseId> = ids.into_iter().chain(grants.iter().map(|grant| grant.grant_id)).collect();
        held.taken.retain(|one| !ids.contains(&one.lease_id()));
        for task in &surplus {
            Box::pin(self.scheduler.give_lease_back(&task.execution_id, &task.fence)).await;
        }
        for grant in &grants {
            Box::pin(self.scheduler.give_grant_back(grant)).await;
        }
        held
    }
}
