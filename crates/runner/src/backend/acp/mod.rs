//! Any backend that speaks the Agent Client Protocol over its standard streams. The process lives across the turns of a
//! lease. The session it works on is the backend's own, and outlives the process if the backend stores it.
//!
//! Updates of the backend are turned into events. A turn ends by the reply to its prompt, or for our own reason to
//! stop it. A session that cannot be resumed is never replaced by a new one.

pub mod companion;
mod details;
mod failures;
mod files;
mod host;
mod modes;
mod notifications;
pub mod program;
mod session;
pub(super) mod side_query;
mod terminals;
mod turn;
mod updates;
pub mod verbs;
mod wire;

use futures_util::future::BoxFuture;
use ostler_protocol::{
    FailureKind, Rule,
    kernel::policy::{Network, Sandbox},
    rpc::Version,
};

use super::{
    child::{close_unopened, program_unusable, report_process_end, report_process_lost, start_process, unless_stopped},
    interface::Backend,
    process::Program,
    toolkit,
    turn::{Turn, TurnAbort, TurnEnd, TurnResult},
};
use crate::{environment::BackendEnvironment, tool_gateway::ToolGateway, tools::disable_in_home, turn_sink::TurnSink};
use session::{OpenSession, open_session};
use turn::AcpTurn;

pub(crate) struct AcpBackend {
    command: Vec<String>,
    /// Folders of the home in which the backend stores its sessions.
    keep: Vec<String>,
    environment: BackendEnvironment,
    /// The session that is open between two turns. `None` after a turn that did not end well.
    open: Option<OpenSession>,
    /// The backend's session, once there is one.
    session_id: Option<String>,
    /// How the backend reaches the server's tools, once it has been started.
    gateway: Option<ToolGateway>,
}

impl AcpBackend {
    pub(crate) fn new(command: &[String], keep: &[String], environment: &BackendEnvironment) -> Self {
        let (command, keep) = (command.to_vec(), keep.to_vec());
        Self { command, keep, environment: environment.clone(), open: None, session_id: None, gateway: None }
    }

    async fn run_turn(&mut self, turn: &Turn, sink: TurnSink) -> TurnResult {
        if turn.run.execution_policy.network == Network::Disabled {
            let message = "the run's policy disables the network, which cannot be enforced for this agent's tools";
            return Ok(TurnEnd::failed(FailureKind::TenantPolicyDenied, message));
        }
        // Until the turn ends.
        let _attached = toolkit::attach(&mut self.gateway, &self.environment, turn, &sink).await;
        let front_end = toolkit::front_end_digest(turn);
        // A backend that cannot resume its session keeps the tools that it has.
        let is_stale =
            |session: &mut OpenSession| session.has_gateway && session.can_resume && session.front_end != front_end;
        if let Some(stale) = self.open.take_if(is_stale) {
            stale.process.close().await;
        }
        if let Some(lost) = self.open.take_if(|session| !session.process.is_running()) {
            report_process_lost(&sink, &lost.process).await;
        }
        let (mut session, has_prompt) = match self.open.take() {
            Some(session) => (session, false),
            None => match self.open(turn, &sink, front_end).await? {
                Ok(opened) => opened,
                Err(end) => return Ok(end),
            },
        };
        self.session_id = Some(session.session_id.clone());
        match unless_stopped(sink.stopped(), session.select_mode(turn)).await {
            Ok(Ok(())) => {}
            Ok(Err(end)) => {
                report_process_end(&sink, &session.process).await;
                session.process.close().await;
                return Ok(end);
            }
            Err(abort) => {
                session.process.close().await;
                return Err(abort);
            }
        }
        let mut acp_turn = AcpTurn::new(&mut session, &self.environment, turn, sink);
        let result = acp_turn.run(has_prompt).await;
        match acp_turn.is_reusable {
            true => self.open = Some(session),
            false => {
                session.process.close().await;
            }
        }
        result
    }

    /// Starts the program and opens the backend's session in it. Also returns whether the session already contains the
    /// prompt, from an earlier attempt. A program that is stopped during this call has ended when it returns.
    async fn open(
        &self,
        turn: &Turn,
        sink: &TurnSink,
        front_end: String,
    ) -> Result<Result<(OpenSession, bool), TurnEnd>, TurnAbort> {
        let program = self.program(turn.run.execution_policy.sandbox);
        let mut process = match program
            .and_then(|program| start_process(&program, self.environment.text_cutter(), Rule::ProfileProgram))
        {
            Ok(process) => process,
            Err(end) => return Ok(Err(end)),
        };
        let session_id = self.session_id.as_ref().or(turn.thread_id.as_ref());
        let opening = open_session(&mut process, session_id, &self.environment, self.gateway.as_ref(), turn, sink);
        match unless_stopped(sink.stopped(), opening).await {
            Ok(Ok(opened)) => {
                let session = OpenSession {
                    process,
                    session_id: opened.session_id,
                    model: opened.model,
                    modes: opened.modes,
                    commands: serde_json::Value::Null,
                    context_window: None,
                    is_new: opened.is_new,
                    sees_images: opened.sees_images,
                    has_gateway: opened.has_gateway,
                    can_resume: opened.can_resume,
                    front_end,
                };
                Ok(Ok((session, opened.has_prompt)))
            }
            Ok(Err(end)) => close_unopened(process, sink, Ok(end)).await,
            Err(abort) => close_unopened(process, sink, Err(abort)).await,
        }
    }

    pub(in crate::backend::acp) fn program(&self, sandbox: Sandbox) -> Result<Program, TurnEnd> {
        let path = program::find(&self.command, std::env::var_os("PATH").as_deref())
            .map_err(|message| program_unusable(Rule::ProfileProgram, message))?;
        let arguments = self.command.iter().skip(1);
        let home = self.environment.require_home()?;
        self.environment.link_storage(self.keep.iter().map(AsRef::as_ref))?;
        disable_in_home(home, &self.environment.disabled_tools).map_err(|error| {
            let message = format!("the agent's settings cannot be changed: {}", error.kind());
            TurnEnd::failed(FailureKind::InfraFailed, message)
        })?;
        Ok(Program {
            path,
            arguments: arguments.map(Into::into).collect(),
            directory: Some(self.environment.require_workspace()?.to_owned()),
            environment: [("HOME".into(), home.into())]
                .into_iter()
                .chain(self.environment.program_variables())
                .collect(),
            version: Version::Two,
            guarded: self.environment.guarded(sandbox),
        })
    }
}

impl Backend for AcpBackend {
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(self.run_turn(turn, sink))
    }

    fn keeps_lease(&self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    fn keeps_thread(&self) -> bool {
        true
    }

    /// Whether the program does is only known once it has started. If not, the turn notes how many it does not see.
    fn sees_images(&self) -> bool {
        true
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(session) = self.open.take() {
                session.process.close().await;
            }
        })
    }
}
