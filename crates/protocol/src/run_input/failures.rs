//! Failures of the run input dialect.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Failure, FailureKind, Rule, failures::Problem, kernel::operations::OPEN_PERMISSIONS};

/// A problem of RFC 9457 with the dialect's own code.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunInputProblem {
    #[serde(flatten)]
    pub problem: Problem,
    /// The dialect's own stable name of the failure.
    pub code: String,
}

impl From<Problem> for RunInputProblem {
    fn from(problem: Problem) -> Self {
        let code = failure_code(&Failure::from(problem.clone())).into_owned();
        Self { problem, code }
    }
}

/// A failure in this dialect's encoding: a body of the wrong shape breaks a rule of the input, and that is a 422. The protocol
/// has a 400 for recordings.
pub fn to_run_input(failure: Failure) -> Failure {
    use Rule::{AgentAudioEmpty, AgentAudioTooLarge, AgentAudioUnsupportedFormat};
    match failure.kind {
        _ if matches!(
            failure.broken_rule(),
            Some(AgentAudioEmpty | AgentAudioTooLarge | AgentAudioUnsupportedFormat)
        ) =>
        {
            failure
        }
        FailureKind::SchemaInvalid => Failure { kind: FailureKind::RunInputInvalid, ..failure },
        _ => failure,
    }
}

/// A failure of the kernel to accept a submission, in the terms of this dialect.
pub fn submission_failure(failure: Failure) -> Failure {
    if failure.broken_rule() == Some(Rule::PermissionEdits) {
        return Failure::rule(Rule::InterruptAnswer, failure.message);
    }
    let rule = INTERRUPT_RULES.iter().find(|(kernel_rule, ..)| failure.broken_rule() == Some(*kernel_rule));
    let Some((_, rule, message)) = rule else { return failure };
    let ids = failure.details.as_ref().and_then(|details| details.get(OPEN_PERMISSIONS)).cloned();
    match ids {
        Some(Value::Array(ids)) => {
            let list: Vec<_> = ids.iter().filter_map(Value::as_str).collect();
            let failure = Failure::rule(*rule, format!("{message}: {}", list.join(", ")));
            failure.detail("interruptIds", list)
        }
        _ => Failure::rule(*rule, *message),
    }
}

/// The stable code of a failure: that of its rule, if the table of rules has one, else that of its kind.
pub fn failure_code(failure: &Failure) -> Cow<'static, str> {
    if let Some(code) = failure.broken_rule().and_then(|rule| rule.row().run_input_code) {
        return code.into();
    }
    match failure.kind {
        FailureKind::Unauthenticated => "AUTH_UNAUTHORIZED",
        FailureKind::Forbidden | FailureKind::OriginDenied | FailureKind::TenantPolicyDenied => "AGENT_FORBIDDEN",
        FailureKind::NotFound => "AGENT_SESSION_NOT_FOUND",
        FailureKind::SessionBusy => "AGENT_SESSION_RUN_LIMIT_EXCEEDED",
        FailureKind::IdempotencyConflict => "AGENT_RUN_ID_CONFLICT",
        FailureKind::RunInputInvalid | FailureKind::PayloadTooLarge | FailureKind::UnsupportedMediaType => {
            "AGENT_PAYLOAD_INVALID"
        }
        other => return format!("AGENT_{}", other.as_str().to_uppercase().replace('-', "_")).into(),
    }
    .into()
}

/// Whether it is about interrupts and their answers. A stream reports such a failure by an event, as AG-UI requires.
pub fn is_of_interrupts(failure: &Failure) -> bool {
    failure.broken_rule().is_some_and(|rule| rule.row().is_of_interrupts)
}

/// The kernel's rules about permission requests, with what this dialect calls them: there they are interrupts.
const INTERRUPT_RULES: [(Rule, Rule, &str); 6] = [
    (
        Rule::PermissionsOpen,
        Rule::InterruptsOpen,
        "the thread waits for an answer; resume must cover every open interrupt",
    ),
    (Rule::PermissionUnknown, Rule::InterruptUnknown, "the thread has no such interrupt"),
    (Rule::PermissionTwice, Rule::InterruptTwice, "resume answers one interrupt twice"),
    (Rule::PermissionOption, Rule::InterruptAnswer, "the interrupt offers no such answer"),
    (Rule::PermissionResolved, Rule::InterruptResolved, "the interrupt has been answered otherwise"),
    (Rule::PermissionExpired, Rule::InterruptExpired, "the interrupt has expired; it can only be cancelled"),
];
