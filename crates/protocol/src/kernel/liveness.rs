//! Liveness: a snapshot derived on request, never stored. It helps people see the progress of a command; it is never a
//! source of truth about how the command ended.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::{
    FailureKind, Timestamp,
    kernel::{
        commands::{Command, CommandState},
        events::EventType,
        fold::CommandStanding,
        leases::Lease,
        runs::Run,
    },
    limits::{HEARTBEAT_STALE_PERCENT, IDLE_AFTER_TOOL_MS},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The run has no command yet, or all its commands have ended.
    Idle,
    WaitingRunner,
    WaitingModel,
    WaitingTool,
    WaitingPermission,
    WaitingProvider,
    IdleAfterTool,
    TransportDisconnected,
    RunnerHeartbeatStale,
    Terminal,
}

impl Phase {
    /// Its name on the wire.
    fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// Whether the runner waits to try again, at a time that it may have stated.
    fn is_retry(self) -> bool {
        matches!(self, Self::WaitingProvider | Self::TransportDisconnected)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Liveness {
    pub phase: Phase,
    pub active: bool,
    pub last_seq: i64,
    pub last_event_age_ms: Option<i64>,
    pub last_command_activity: Option<Activity>,
    pub lease: Option<LeaseSummary>,
    pub open_tool_calls: Vec<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub resume_at: Option<Timestamp>,
    /// The profile whose runner the run waits for, if only a runner elsewhere can take it up; null otherwise.
    #[serde(default)]
    pub external_profile: Option<String>,
    /// The workspace whose server the run waits for, if the server that responds is bound to another one or to none; null
    /// otherwise.
    #[serde(default)]
    pub other_workspace: Option<String>,
    /// Why the pod of the runner does not start, as the cluster has it: `ImagePullBackOff`, `Unschedulable`; null otherwise.
    #[serde(default)]
    pub pod_reason: Option<String>,
    /// What a person could do now.
    pub suggested_action: String,
    /// The suggested action as a request; null where it needs a person's decision, or nothing has to be recovered.
    pub recovery: Option<Recovery>,
}

/// A request that can be sent as it is. Sending it twice does no more than sending it once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    pub method: String,
    pub path: String,
    #[schema(value_type = Object)]
    pub body: Value,
}

impl Recovery {
    fn post(path: String, body: Value) -> Self {
        Self { method: "POST".into(), path, body }
    }

    /// `None` if nothing is wrong, if a person has to decide, if a runner still holds the command, or if the server starts the next
    /// runner by itself. `is_held`: a runner holds the run.
    fn of(phase: Phase, run: &Run, command: &Command, is_held: bool) -> Option<Self> {
        match phase {
            Phase::Idle | Phase::WaitingModel | Phase::WaitingTool | Phase::WaitingPermission | Phase::Terminal => None,
            Phase::WaitingRunner | Phase::RunnerHeartbeatStale => {
                let starts_itself = run.standing_job_id.is_some() || command.cancel_requested_at.is_some();
                // A runner job for a command that a runner works on is refused. The state of a target is not known here.
                let is_startable =
                    !is_held || command.state == CommandState::Pending && command.target_command_id.is_none();
                let command_id = command.target_command_id.unwrap_or(command.command_id);
                // One job for each lease that was lost.
                let key = format!("recovery-{command_id}-{}", run.lease_epoch);
                let body = json!({"commandId": command_id, "idempotencyKey": key});
                let path = format!("/api/v1/runs/{}/runner-jobs", run.run_id);
                (is_startable && !starts_itself).then(|| Self::post(path, body))
            }
            Phase::WaitingProvider | Phase::IdleAfterTool | Phase::TransportDisconnected => {
                let body = json!({"reason": format!("cancelled while {}", phase.name())});
                Some(Self::post(format!("/api/v1/commands/{}/cancel", command.command_id), body))
            }
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    pub seq: i64,
    #[serde(rename = "type")]
    pub event_type: EventType,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub age_ms: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseSummary {
    pub runner_id: String,
    pub lease_epoch: i64,
    pub live: bool,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    pub heartbeat_age_ms: i64,
}

/// The same snapshot in one line, for people and alarms.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Supervisor {
    /// `ok`, `waiting`, `attention` or `done`.
    pub state: String,
    pub summary: String,
    pub suggested_action: String,
}

impl Liveness {
    pub fn of(
        run: &Run,
        command: Option<&Command>,
        lease: Option<&Lease>,
        open_permissions: i64,
        now: Timestamp,
    ) -> Self {
        let phase = phase(run, command, lease, open_permissions, now);
        let activity = command.and_then(|command| {
            let fold = &command.fold;
            let (at, event_type) = (fold.last_event_at?, fold.last_event_type?);
            Some(Activity { seq: fold.last_seq, event_type, at, age_ms: age_ms(at, now) })
        });
        Self {
            phase,
            active: !matches!(phase, Phase::Terminal | Phase::Idle),
            last_seq: run.last_seq,
            last_event_age_ms: (run.last_seq > 0).then(|| age_ms(run.updated_at, now)),
            last_command_activity: activity,
            lease: lease.map(|lease| LeaseSummary {
                runner_id: lease.runner_id.clone(),
                lease_epoch: lease.epoch,
                live: lease.is_live(now),
                expires_at: lease.expires_at,
                heartbeat_age_ms: age_ms(lease.heartbeat_at, now),
            }),
            open_tool_calls: command.map(|c| c.fold.tools.open.clone()).unwrap_or_default(),
            resume_at: command.and_then(|c| c.fold.resume_at).filter(|_| phase.is_retry()),
            external_profile: None,
            other_workspace: None,
            pod_reason: None,
            suggested_action: suggestion(phase, failure_kind(run, command)).to_owned(),
            recovery: command.and_then(|command| {
                let is_held = lease.is_some_and(|lease| lease.is_live(now));
                Recovery::of(phase, run, command, is_held)
            }),
        }
    }

    /// The server starts no runner for this profile. Changes nothing unless the run waits for a runner.
    pub fn wait_for_external(&mut self, profile: &str) {
        if self.phase != Phase::WaitingRunner {
            return;
        }
        self.external_profile = Some(profile.to_owned());
        self.suggested_action = format!("start a runner that claims profile {profile}, or check the running one");
    }

    /// Only a server that is bound to this workspace starts the run's runner. Changes nothing unless the run waits for a runner.
    pub fn wait_for_server_of(&mut self, workspace: &str) {
        if self.phase != Phase::WaitingRunner {
            return;
        }
        self.other_workspace = Some(workspace.to_owned());
        self.suggested_action = format!("start a server that is bound to the workspace {workspace}");
    }

    /// The runner is started, and its pod waits for this reason. Changes nothing unless the run waits for a runner.
    pub fn wait_for_pod(&mut self, reason: &str, message: Option<&str>) {
        if self.phase != Phase::WaitingRunner {
            return;
        }
        self.pod_reason = Some(reason.to_owned());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        self.suggested_action = format!("check why the pod of its runner does not start: {reason}{message}");
    }

    pub fn supervisor(&self) -> Supervisor {
        let state = match self.phase {
            Phase::Terminal | Phase::Idle => "done",
            Phase::WaitingModel | Phase::WaitingTool => "ok",
            Phase::WaitingRunner | Phase::WaitingPermission | Phase::WaitingProvider => "waiting",
            Phase::IdleAfterTool | Phase::TransportDisconnected | Phase::RunnerHeartbeatStale => "attention",
        };
        let age =
            self.last_event_age_ms.map_or_else(|| "no event yet".to_owned(), |ms| format!("last event {ms} ms ago"));
        let name = self.phase.name();
        let waits = match (&self.external_profile, &self.other_workspace, &self.pod_reason) {
            (Some(profile), ..) => format!("waiting for a runner that claims profile {profile}; "),
            (None, Some(workspace), _) => format!("waiting for a server of the workspace {workspace}; "),
            (None, None, Some(reason)) => format!("waiting for the pod of its runner: {reason}; "),
            (None, None, None) => String::new(),
        };
        Supervisor {
            state: state.into(),
            summary: format!("{name}; {waits}{age}"),
            suggested_action: self.suggested_action.clone(),
        }
    }
}

fn phase(run: &Run, command: Option<&Command>, lease: Option<&Lease>, open_permissions: i64, now: Timestamp) -> Phase {
    if run.status.is_terminal() || command.is_some_and(|c| c.state.is_terminal()) {
        return Phase::Terminal;
    }
    let Some(command) = command else { return Phase::Idle };
    let held = lease.filter(|lease| !lease.ended);
    match held {
        Some(lease) if stale(lease, now) => return Phase::RunnerHeartbeatStale,
        Some(_) => {}
        None => return Phase::WaitingRunner,
    }
    if command.state == CommandState::Pending {
        return Phase::WaitingRunner;
    }
    if open_permissions > 0 {
        return Phase::WaitingPermission;
    }
    let fold = &command.fold;
    match fold.standing {
        CommandStanding::Disconnected => Phase::TransportDisconnected,
        CommandStanding::WaitingProvider => Phase::WaitingProvider,
        _ if !fold.tools.open.is_empty() => Phase::WaitingTool,
        CommandStanding::AfterTool if fold.last_event_at.is_some_and(|at| age_ms(at, now) >= IDLE_AFTER_TOOL_MS) => {
            Phase::IdleAfterTool
        }
        _ => Phase::WaitingModel,
    }
}

fn stale(lease: &Lease, now: Timestamp) -> bool {
    !lease.is_live(now) || age_ms(lease.heartbeat_at, now) * 100 > lease.duration_ms * HEARTBEAT_STALE_PERCENT
}

fn age_ms(at: Timestamp, now: Timestamp) -> i64 {
    (now.as_millisecond() - at.as_millisecond()).max(0)
}

/// How the command failed, or the run if it has no command. `None` if it has not ended, and if it completed.
fn failure_kind(run: &Run, command: Option<&Command>) -> Option<FailureKind> {
    let terminal = command.map_or(run.terminal.as_ref(), |command| command.terminal.as_ref());
    terminal.and_then(|terminal| terminal.failure_kind)
}

fn suggestion(phase: Phase, failure_kind: Option<FailureKind>) -> &'static str {
    match phase {
        Phase::Idle => "submit a command",
        Phase::WaitingRunner => "wait for a runner to claim the run; create a runner job if the run has none",
        Phase::WaitingModel | Phase::WaitingTool => "wait, steer the turn, or cancel the command",
        Phase::WaitingPermission => "answer the open permission request",
        Phase::WaitingProvider => {
            "wait until resumeAt, when the runner calls the provider again, or cancel the command"
        }
        Phase::IdleAfterTool => "steer the turn, or cancel the command",
        Phase::TransportDisconnected => "wait for the runner to reconnect, or cancel the command",
        Phase::RunnerHeartbeatStale => {
            "wait for the lease to expire; create a runner job if the server starts no other runner"
        }
        Phase::Terminal if failure_kind == Some(FailureKind::PermissionDenied) => {
            "submit another turn to the session with other instructions, or retry the run and allow the request"
        }
        Phase::Terminal => "read the result",
    }
}
