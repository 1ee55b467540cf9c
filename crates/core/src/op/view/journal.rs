//! Questions about a journal, and the evidence for one answer or another.

use serde::{Deserialize, Serialize};

use crate::execution::{Execution, LateReport, StepAnswer, Wait};
use crate::id::LeaseId;
use crate::journal::{StepIdentity, StepState};
use crate::op::parts::Content;
use crate::suspension::SuspendReason;

/// A question about an entry of the journal, which `decide_step` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuestionView {
    /// The entry.
    pub step: StepIdentity,
    /// `in_doubt`, `journal_mismatch` or `no_progress`.
    pub reason: SuspendReason,
    /// The reason in words, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The answers it takes.
    pub answers: Vec<StepAnswer>,
    /// Reports of workers about the step after they had lost their lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<LateReportView>,
}

/// How a step ended according to a worker that had lost its lease.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LateReportView {
    /// How it ended.
    pub state: StepState,
    /// Its result, when it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Content>,
    /// How many bytes the result has.
    pub result_size: u64,
    /// The category of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The message of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The lease that was lost; shown to operators only.
    #[serde(default, skip_serializing_if = "LeaseId::is_nil")]
    pub lease_id: LeaseId,
    /// When it was reported.
    pub reported_at: i64,
}

impl From<&LateReport> for LateReportView {
    fn from(report: &LateReport) -> Self {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let content = |payload: &crate::payload::Payload| {
            let bytes = payload.assemble(None)?;
            Some(Content { bytes, content_type: payload.content_type.clone() })
        };
        Self {
            state: report.state,
            result: report.result.as_ref().and_then(content),
            result_size: report.result_size,
            category: some(&report.category),
            message: some(&report.message),
            lease_id: report.lease,
            reported_at: report.at,
        }
    }
}

impl QuestionView {
    /// The open questions of an execution.
    pub fn of(execution: &Execution) -> Vec<Self> {
        let asked = |wait: &Wait| {
            let question = wait.question.as_ref()?;
            let step = wait.identity();
            Some(Self {
                reason: question.reason,
                detail: Some(question.detail.clone()).filter(|text| !text.is_empty()),
                answers: question.answers().to_vec(),
                evidence: execution.late_reports(&step).map(LateReportView::from).collect(),
                step,
            })
        };
        let suspended = execution.suspension.is_some();
        execution.waits.iter().filter(|_| suspended).filter_map(asked).collect()
    }
}
