//! Delivers a signal to a waitpoint. Its token is all the authority it takes; nothing is revealed before it verified.
//! An operator needs none.

use ff_core::condition::source;
use ff_core::event::Effects;
use ff_core::execution::{Execution, ResumedBy};
use ff_core::journal::StepIdentity;
use ff_core::op::{DeliverSignal, DeliverSignalArgs};
use ff_core::planted::{Bug, planted};
use ff_core::signal::SignalOutcome;
use ff_core::waitpoint::{Waitpoint, WaitpointState};
use ff_core::{
    AcceptedSignal, Blob, Code, Document, Error, Indexed, Key, NewSignal, Result, Role, SignalEffect, SignalId,
    SignalRecord, TokenSubject, WaitpointId, WaitpointSecrets, index, limits,
};
use ff_store::{Query, Scan, StoredDocument};
use uuid::Uuid;

use crate::caller::{Caller, Standing, WAITPOINT_TOKEN};
use crate::execution_data::close_waitpoints;
use crate::journal::signal_entry;
use crate::limits::bytes;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::visibility::{check_reachable, load_visible, not_found};
use crate::{env, journal, mailbox};

impl Handle<DeliverSignal> for Services {
    async fn handle(&self, caller: &Caller, args: DeliverSignalArgs) -> Result<SignalOutcome> {
        let signal = self.new_signal(&args)?;
        signal.validate()?;
        let size = signal.payload.as_ref().map_or(0, |payload| payload.len());
        bytes("payload", size, self.transactor.limits().signal_payload_max_bytes)?;
        let authority = match &args.token {
            Some(token) => Authority::Token(&token.0, self.shared.secrets.secrets_for(&token.0).await?),
            None => Authority::Operator,
        };
        let partition = args.execution_id.partition();
        if let Err(absent) = self.transactor.check_id(&args.execution_id) {
            authority.check(None, self.transactor.now())?;
            return Err(absent);
        }
        let verb = SendSignal { caller, args: &args, signal, authority };
        self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await
    }
}

impl Services {
    fn new_signal(&self, args: &DeliverSignalArgs) -> Result<NewSignal> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let payload = args.payload()?;
        Ok(NewSignal {
            id: args
                .signal_id
                .unwrap_or_else(|| SignalId::mint(&env::mint(self.transactor.env(), self.transactor.now()))),
            execution: args.execution_id,
            waitpoint: args.waitpoint_id.unwrap_or_default(),
            name: args.name.clone(),
            category: text(&args.category),
            source_type: text(&args.source_type),
            source_identity: text(&args.source_identity),
            correlation_id: text(&args.correlation_id),
            content_type: payload.as_ref().map(|payload| payload.content_type.clone()).unwrap_or_default(),
            payload: payload.map(|payload| Blob(payload.bytes)),
            created_at: args.created_at,
            ..NewSignal::default()
        })
    }
}

/// The source of a person that a relay vouches for: the identity alone, because a relay may say of one person at one
/// time that it came by mail and at another that it came from a chat.
const VOUCHED: &str = "vouched";

/// Notes the caller that brought a signal, and what counts as its source. A caller that has to prove itself cannot
/// speak for several people, unless it is trusted to. A caller from another namespace has no standing here but the
/// waitpoint's token. Nor has a caller whose role may not signal, as far as sources are counted: a link counts once, sent
/// with such an API token or without one.
fn attribute(signal: &mut NewSignal, caller: &Caller, by_token: bool, execution: &Execution) {
    let own = !execution.submitted_by.is_empty() && execution.submitted_by == caller.name;
    let may_signal = own || caller.role.allows(Role::Operator) || caller.role.allows(Role::Approver);
    let standing = match caller.standing {
        Standing::Token | Standing::Relay if !caller.sees(&execution.namespace) => Standing::Stranger,
        standing => standing,
    };
    let only_by_token = by_token && !may_signal;
    let by_token = by_token && matches!(standing, Standing::Open | Standing::Stranger);
    signal.delivered_by = if by_token { WAITPOINT_TOKEN.to_owned() } else { caller.name.clone() };
    signal.vouched = standing == Standing::Relay && !signal.source_identity.is_empty();
    signal.counted_as = match standing {
        Standing::Open => None,
        Standing::Token if only_by_token => Some(source(WAITPOINT_TOKEN, &signal.waitpoint.to_string())),
        Standing::Relay if signal.vouched => Some(source(VOUCHED, &signal.source_identity)),
        Standing::Token | Standing::Relay => Some(match &caller.configured_token {
            // Configured tokens may have no names, and are several callers all the same.
            Some(token) => source("configured_token", &Uuid::from_bytes(*token).to_string()),
            None => source("api_token", &caller.name),
        }),
        Standing::Stranger => Some(source(WAITPOINT_TOKEN, &signal.waitpoint.to_string())),
    };
}

/// Signals of one name that a function may be sent before it waits for them, past and present.
const MAILBOXES_MAX: u32 = 1_000;

/// By what right a signal comes.
enum Authority<'a> {
    /// The waitpoint's token, and the secrets to verify it with.
    Token(&'a str, WaitpointSecrets),
    /// The caller's role, which was checked before.
    Operator,
}

impl Authority<'_> {
    /// Verifies a token, at the same cost whether or not the waitpoint exists.
    fn check(&self, waitpoint: Option<&Waitpoint>, now: i64) -> Result<()> {
        match self {
            Authority::Token(..) if planted(Bug::TokenNotChecked) => Ok(()),
            Authority::Token(token, secrets) => {
                let subject = waitpoint.map(TokenSubject::from);
                secrets.verify(token, subject.as_ref(), now)
            }
            Authority::Operator => Ok(()),
        }
    }
}

struct SendSignal<'a> {
    caller: &'a Caller,
    args: &'a DeliverSignalArgs,
    signal: NewSignal,
    authority: Authority<'a>,
}

impl Command for SendSignal<'_> {
    type Outcome = SignalOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignalOutcome> {
        if let Some(repeated) = self.repeated_by_name(tx).await? {
            return Ok(repeated);
        }
        let (id, fresh) = match self.args.waitpoint_id {
            Some(id) => (id, None),
            // A repeat goes where the signal went first, wherever its name leads by now.
            None => match tx
                .load::<AcceptedSignal>(AcceptedSignal::key_of(&self.signal.id))
                .await?
                .map(|loaded| loaded.document)
            {
                Some(existing) if existing.execution == self.args.execution_id => (existing.waitpoint, None),
                _ => self.meant_waitpoint(tx).await?,
            },
        };
        let mut found = self.read(tx, id).await?;
        found.waitpoint = found.waitpoint.or(fresh);
        // A waitpoint of another namespace is no waitpoint, unless its token says otherwise.
        let by_token = matches!(self.authority, Authority::Token(..));
        let waitpoint = found.waitpoint.filter(|waitpoint| {
            waitpoint.id == id
                && waitpoint.execution == self.args.execution_id
                && (by_token || self.caller.sees(&waitpoint.namespace))
        });
        self.authority.check(waitpoint.as_ref(), tx.now)?;
        let execution = found.execution.ok_or_else(|| not_found(&self.args.execution_id))?;
        if !by_token {
            check_reachable(self.caller, &execution)?;
        }
        let waitpoint = waitpoint.ok_or_else(|| Error::of(Code::WaitpointNotFound).with("waitpoint_id", id))?;
        if let Some(record) = found.record.filter(|_| !planted(Bug::SignalCountedTwice)) {
            return Ok(record.repeated());
        }
        if let Some(existing) = found.signal {
            return duplicate_of(&existing, id);
        }
        self.accept(tx, execution, waitpoint).await
    }
}

/// The documents that a signal has to do with, read in one round trip.
struct Found {
    waitpoint: Option<Waitpoint>,
    execution: Option<Execution>,
    record: Option<SignalRecord>,
    signal: Option<AcceptedSignal>,
}

impl SendSignal<'_> {
    fn record_key(&self, waitpoint: &WaitpointId) -> Option<Key> {
        let key = self.args.idempotency_key.as_deref().filter(|key| !key.is_empty())?;
        Some(SignalRecord::key_of(waitpoint, key))
    }

    /// The answer to a signal that named no waitpoint and comes again: its name may lead elsewhere by now.
    async fn repeated_by_name(&self, tx: &mut Tx<'_>) -> Result<Option<SignalOutcome>> {
        let (None, Some(key)) = (self.args.waitpoint_id, self.args.idempotency_key.as_deref()) else { return Ok(None) };
        let key = SignalRecord::key_by_name(&self.args.execution_id, &self.args.name, key);
        let Some(loaded) = tx.load::<SignalRecord>(key).await?.filter(|_| !planted(Bug::SignalCountedTwice)) else {
            return Ok(None);
        };
        let execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        check_reachable(self.caller, &execution)?;
        Ok(Some(loaded.document.repeated()))
    }

    async fn read(&self, tx: &mut Tx<'_>, id: WaitpointId) -> Result<Found> {
        let execution = Execution::key_of(&self.args.execution_id);
        let mut keys = vec![Waitpoint::key_of(&id), execution, AcceptedSignal::key_of(&self.signal.id)];
        keys.extend(self.record_key(&id));
        let answers = tx.read(vec![Query::Documents(keys.clone())]).await?;
        let documents = answers.into_iter().next().and_then(ff_store::Answer::into_documents).unwrap_or_default();
        let mut found = keys.into_iter().zip(documents);
        let mut next = || found.next();
        Ok(Found {
            waitpoint: adopt(tx, next())?,
            execution: adopt(tx, next())?,
            signal: adopt(tx, next())?,
            record: adopt(tx, next())?,
        })
    }

    /// The waitpoint of a signal that names none: the only one of the suspension, the one that waits for a signal of
    /// this name, the only pending one, or else a new one that keeps the signal until a function waits for its name.
    async fn meant_waitpoint(&self, tx: &mut Tx<'_>) -> Result<(WaitpointId, Option<Waitpoint>)> {
        let execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let named = execution.waits.iter().find(|wait| wait.waitpoint.is_some() && wait.name == self.args.name);
        if let Some(id) = named.and_then(|wait| wait.waitpoint) {
            return Ok((id, None));
        }
        if let Some(suspension) = execution.suspension.as_ref().filter(|_| execution.waits.is_empty()) {
            match suspension.waitpoints[..] {
                [only] => return Ok((only, None)),
                // It waits for the answer of a budget: the signal is for a later wait.
                [] => {}
                _ => return Err(Error::invalid("waitpoint_id", "must be given where there are several waitpoints")),
            }
        }
        if execution.is_terminal() {
            return Err(Error::of(Code::TargetNotSignalable).with("public_state", execution.public_state()));
        }
        let scan = Scan::first(index::pending_waitpoints(execution.id.uuid), limits::PAGE_MAX).with_documents();
        let mut plain = Vec::new();
        for entry in tx.scan(scan).await?.entries {
            let Some(waitpoint) = entry.document.and_then(|stored| Waitpoint::decode(&stored.body).ok()) else {
                continue;
            };
            match waitpoint.generation {
                None => plain.push(waitpoint.id),
                // One that holds a signal already will end with that one: the next signal is for the next wait.
                Some(generation)
                    if generation == execution.generation
                        && waitpoint.step_name == self.args.name
                        && waitpoint.buffered.is_empty() =>
                {
                    return Ok((waitpoint.id, None));
                }
                Some(_) => {}
            }
        }
        match plain[..] {
            [only] => Ok((only, None)),
            [] => self.mailbox(tx, &execution).await,
            _ => Err(Error::invalid("waitpoint_id", "must be given where there are several waitpoints")),
        }
    }

    /// Where a signal waits for a function that will wait for its name: the first such entry that has not ended.
    async fn mailbox(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<(WaitpointId, Option<Waitpoint>)> {
        for occurrence in 0..MAILBOXES_MAX {
            let step = StepIdentity { name: self.args.name.clone(), key: None, occurrence: Some(occurrence) };
            step.validate()?;
            let found = mailbox::of_steps(tx, execution, &[&step]).await?.pop();
            if let Some(fresh) = found.filter(|found| !found.known) {
                return Ok((fresh.waitpoint.id, Some(fresh.waitpoint)));
            }
        }
        let detail = format!("at most {MAILBOXES_MAX} signals of one name wait for their execution");
        Err(Error::new(Code::SignalLimitExceeded, detail).with("max", MAILBOXES_MAX))
    }

    /// A signal of the journal ends its entry and wakes the execution if that is parked on it; otherwise it waits.
    async fn wake_parked(
        &self,
        tx: &mut Tx<'_>,
        execution: &mut Execution,
        waitpoint: &mut Waitpoint,
        signal: &NewSignal,
        effects: &mut Effects,
    ) -> Result<SignalEffect> {
        let Some(wait) = execution.waits_at(&waitpoint.id) else { return Ok(SignalEffect::Buffered) };
        waitpoint.consume(tx.now);
        let entry = signal_entry(&wait, signal.id, signal.payload.clone(), &signal.content_type);
        journal::append_decided(tx, execution, &[entry]).await?;
        execution.wake(ResumedBy::Signals, tx.now, effects);
        Ok(SignalEffect::ResumeConditionSatisfied)
    }

    /// An approver decides what people are asked, and nothing else. A waitpoint that the suspension does not wait at may
    /// be that of a question which is yet to come.
    fn check_approver(&self, execution: &Execution, waitpoint: &Waitpoint) -> Result<()> {
        let by_role = self.caller.role == Role::Approver && matches!(self.authority, Authority::Operator);
        let asked = execution
            .suspension
            .as_ref()
            .is_some_and(|suspension| suspension.takes_decisions() && suspension.waitpoints.contains(&waitpoint.id));
        if by_role && !asked {
            let detail = "an approver may only decide what people are asked";
            return Err(Error::new(Code::Forbidden, detail).with("execution_id", execution.id));
        }
        Ok(())
    }

    /// Takes the signal: it counts for the suspension, or waits in the buffer for one.
    async fn accept(
        &self,
        tx: &mut Tx<'_>,
        mut execution: Execution,
        mut waitpoint: Waitpoint,
    ) -> Result<SignalOutcome> {
        self.check_approver(&execution, &waitpoint)?;
        waitpoint.check_open(tx.now)?;
        if waitpoint.generation.is_some_and(|generation| generation != execution.generation) {
            return Err(Error::of(Code::WaitpointClosed).with("waitpoint_id", waitpoint.id));
        }
        if execution.is_terminal() {
            return Err(Error::of(Code::TargetNotSignalable).with("public_state", execution.public_state()));
        }
        execution.count_signal(tx.now)?;
        let mut new = self.signal.clone();
        new.waitpoint = waitpoint.id;
        attribute(&mut new, self.caller, self.args.token.is_some(), &execution);
        let fact = new.fact(tx.now);
        let suspension = execution.suspension.clone();
        let mut effects = Effects::default();
        execution.signal_event(new.id, &new.name, &mut effects);
        let effect = match waitpoint.state {
            WaitpointState::Pending => {
                waitpoint.buffer(fact, new.size(), tx.now)?;
                let effect = self.wake_parked(tx, &mut execution, &mut waitpoint, &new, &mut effects).await?;
                tx.save(&waitpoint);
                effect
            }
            WaitpointState::Active | WaitpointState::Closed | WaitpointState::Unknown(_) => {
                let delay_ms = self.args.resume_delay_ms.unwrap_or(0);
                if let Some(suspension) = &suspension {
                    suspension.check_answer(&fact, new.payload.as_ref().map(|payload| &payload[..]))?;
                }
                // The waitpoint must still be open when this is committed.
                tx.pin(&waitpoint.key());
                execution.deliver_signal(fact, delay_ms, tx.now, &mut effects)?.delivery.effect()
            }
        };
        let (signal, blob) = AcceptedSignal::accept(new, effect, tx.now)?;
        if let Some(blob) = blob {
            tx.blob(signal.key(), Some(blob.0));
        }
        tx.create(&signal);
        if let Some(key) = self.args.idempotency_key.as_deref().filter(|key| !key.is_empty()) {
            let record = match self.args.waitpoint_id {
                Some(waitpoint) => SignalRecord::new(&waitpoint, key, &signal)?,
                None => SignalRecord::by_name(key, &signal)?,
            };
            tx.create_until(&record, record.expires_at());
        }
        // Waitpoints of the journal outlive the wake of another.
        if let Some(suspension) =
            suspension.filter(|_| execution.suspension.is_none() && waitpoint.generation.is_none())
        {
            close_waitpoints(tx, &suspension, &execution).await?;
        }
        tx.save_execution(&execution, effects);
        Ok(SignalOutcome::of(signal.id, effect))
    }
}

fn adopt<D: Indexed>(tx: &mut Tx<'_>, found: Option<(Key, Option<StoredDocument>)>) -> Result<Option<D>> {
    let Some((key, stored)) = found else { return Ok(None) };
    Ok(tx.adopt::<D>(key, stored)?.map(|loaded| loaded.document))
}

/// A signal id that was used before means the same signal, if it came to the same waitpoint.
fn duplicate_of(existing: &AcceptedSignal, waitpoint: WaitpointId) -> Result<SignalOutcome> {
    if existing.waitpoint == waitpoint {
        return Ok(SignalOutcome::Duplicate { existing_signal_id: existing.id });
    }
    Err(Error::of(Code::IdempotencyConflict).with("signal_id", existing.id))
}
