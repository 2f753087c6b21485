//! What an agent's webhook receives about runs that name the agent. Neither prompts nor answers are part of it.

use serde::Serialize;

use crate::{
    FailureKind, Timestamp,
    ids::{AgentId, CommandId, PermissionId, RunId},
    kernel::{
        commands::{Command, CommandType},
        labels::Labels,
        permissions::{OptionKind, PermissionOption, PermissionRequest},
        runs::{Run, Terminal, TerminalStatus},
        sessions::Session,
    },
};

/// An agent asks for permission.
pub const PERMISSION_REQUESTED: &str = "run.permission_requested";
/// A turn of a run has its outcome.
pub const RUN_ENDED: &str = "run.ended";

/// The run that a delivery is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedRun {
    pub run_id: RunId,
    /// As clients name the session.
    pub session_id: String,
    pub agent_id: AgentId,
    pub profile: String,
    pub labels: Labels,
    pub session_labels: Labels,
}

impl ReportedRun {
    /// `None` if the run names no agent.
    pub fn of(run: &Run, session: &Session) -> Option<Self> {
        Some(Self {
            run_id: run.run_id,
            session_id: run.session_id.clone(),
            agent_id: run.agent_id?,
            profile: run.backend_profile.clone(),
            labels: run.labels.clone(),
            session_labels: session.labels.clone(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportedOption {
    pub option_id: String,
    pub name: String,
    pub kind: OptionKind,
}

impl From<&PermissionOption> for ReportedOption {
    fn from(option: &PermissionOption) -> Self {
        Self { option_id: option.option_id.clone(), name: option.name.clone(), kind: option.kind }
    }
}

/// The payload of [`PERMISSION_REQUESTED`]. `option_id` and `digest` are what an answer over REST names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PermissionReport {
    #[serde(flatten)]
    pub run: ReportedRun,
    pub command_id: CommandId,
    pub permission_id: PermissionId,
    pub title: String,
    /// What will run, in full: a request that is too long for a person to see all of it is denied when it is made.
    pub command: Option<String>,
    pub options: Vec<ReportedOption>,
    pub digest: String,
    pub deadline: Timestamp,
}

impl PermissionReport {
    /// `None` if the request was malformed: it was denied at once, and there is nothing to answer.
    pub fn of(run: ReportedRun, request: &PermissionRequest) -> Option<Self> {
        if request.options.is_empty() {
            return None;
        }
        Some(Self {
            run,
            command_id: request.command_id,
            permission_id: request.permission_id,
            title: request.title.clone(),
            command: request.command.clone(),
            options: request.options.iter().map(ReportedOption::from).collect(),
            digest: request.digest.clone(),
            deadline: request.deadline,
        })
    }
}

/// What a turn has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ReportedUsage {
    pub tokens: i64,
    pub cost_usd: f64,
}

/// The payload of [`RUN_ENDED`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunEndReport {
    #[serde(flatten)]
    pub run: ReportedRun,
    /// The turn. `None` if the run ended without any command.
    pub command_id: Option<CommandId>,
    pub state: TerminalStatus,
    pub failure_kind: Option<FailureKind>,
    pub usage: ReportedUsage,
    pub ended_at: Timestamp,
}

impl RunEndReport {
    /// The end of a turn, stated by the event with this number of the run. `None` if it ended nothing that is reported: steers
    /// and interrupts end with their turn.
    pub fn of_turn(run: ReportedRun, command: &Command, seq: i64) -> Option<Self> {
        let terminal = command.terminal.as_ref().filter(|terminal| terminal.seq == seq)?;
        let usage = ReportedUsage { tokens: command.fold.tokens, cost_usd: command.fold.cost_usd };
        (command.command_type == CommandType::Turn).then(|| Self::of(run, Some(command.command_id), terminal, usage))
    }

    /// The end of a run without commands. The end of any other run is that of its turns.
    pub fn of_run(reported: ReportedRun, run: &Run, seq: i64) -> Option<Self> {
        let terminal = run.terminal.as_ref().filter(|terminal| terminal.seq == seq)?;
        (run.command_count == 0).then(|| Self::of(reported, None, terminal, ReportedUsage::default()))
    }

    fn of(run: ReportedRun, command_id: Option<CommandId>, terminal: &Terminal, usage: ReportedUsage) -> Self {
        let (state, failure_kind, ended_at) = (terminal.status, terminal.failure_kind, terminal.at);
        Self { run, command_id, state, failure_kind, usage, ended_at }
    }
}
