//! What a caller hears while its tool runs: the worker's progress, the steps of the function, and questions.

use ff_core::journal::{StepState, StepView};
use ff_core::op::view::{ExecutionView, ProgressView};
use ff_core::op::{ListSteps, list_steps};
use ff_core::{ExecutionId, Result};
use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};

use crate::deployment::Deployment;
use crate::question::{self, Question};

/// Steps that one look tells of; the others follow with the next.
const STEPS_PER_LOOK: usize = 20;
/// The protocol wants every notification to be further on than the one before, also where the worker gave no number.
const LEAST_ADVANCE: f64 = 0.001;

/// Tells one caller of one execution.
pub(crate) struct Reporter {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    reached: f64,
    has_total: bool,
    told: Option<ProgressView>,
    /// The keys of the questions that the caller has heard of and that are still open.
    questions: Vec<String>,
    generation: u32,
    step: u64,
}

impl Reporter {
    /// For a caller that wants to hear of it.
    pub(crate) fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let token = context.meta.get_progress_token()?;
        let peer = context.peer.clone();
        Some(Self {
            peer,
            token,
            reached: 0.0,
            has_total: false,
            told: None,
            questions: Vec::new(),
            generation: 0,
            step: 0,
        })
    }

    /// Says at once which execution the call is: a caller that loses its connection can look for it.
    pub(crate) async fn begin(&mut self, id: ExecutionId) {
        self.tell(None, Some(format!("execution {id}"))).await;
    }

    /// Tells what is new.
    pub(crate) async fn report(&mut self, deployment: &impl Deployment, view: &ExecutionView) -> Result<()> {
        if view.attempt.is_some() {
            self.report_steps(deployment, view).await?;
        }
        if let Some(progress) = view.progress.as_ref().filter(|progress| self.told.as_ref() != Some(*progress)) {
            self.told = Some(progress.clone());
            self.has_total |= progress.pct.is_some();
            let message = progress.message.clone().filter(|message| !message.is_empty());
            self.tell(progress.pct.map(f64::from), message).await;
        }
        let open = question::open(view);
        for question in &open {
            if !self.questions.contains(&question.key()) {
                self.tell(None, Some(format!("waits for an answer: {}", question.text()))).await;
            }
        }
        self.questions = open.iter().map(Question::key).collect();
        Ok(())
    }

    async fn report_steps(&mut self, deployment: &impl Deployment, view: &ExecutionView) -> Result<()> {
        if view.generation != self.generation {
            (self.generation, self.step) = (view.generation, 0);
        }
        let args = list_steps::Args {
            execution_id: view.execution_id,
            generation: Some(self.generation),
            after: Some(self.step),
            limit: Some(STEPS_PER_LOOK),
        };
        for step in deployment.call::<ListSteps>(args).await?.items {
            self.step = step.number;
            self.tell(None, Some(words(&step))).await;
        }
        Ok(())
    }

    /// A caller that no longer listens is noticed elsewhere.
    async fn tell(&mut self, at: Option<f64>, message: Option<String>) {
        let advanced = self.reached + LEAST_ADVANCE;
        self.reached = at.map_or(advanced, |at| at.max(advanced));
        let mut told = ProgressNotificationParam::new(self.token.clone(), self.reached);
        if self.has_total {
            told = told.with_total(100.0_f64.max(self.reached));
        }
        if let Some(message) = message {
            told = told.with_message(message);
        }
        if let Err(error) = self.peer.notify_progress(told).await {
            tracing::debug!(%error, "progress could not be told");
        }
    }
}

fn words(step: &StepView) -> String {
    let name = match &step.key {
        Some(key) => format!("{} ({key})", step.name),
        None => step.name.clone(),
    };
    match (step.state, &step.message) {
        (StepState::Failed, Some(message)) => format!("step {name} failed: {message}"),
        (state, _) => format!("step {name} {state}"),
    }
}
