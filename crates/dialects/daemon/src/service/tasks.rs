//! Tasks of a session: its prompts that wait or run.

use ostler_protocol::{
    Failure, Rule,
    daemon::tasks::{SessionTask, SessionTasks, TaskCancelled},
    kernel::{
        commands::{Command, CommandState},
        runs::Cancel,
    },
    text::clip,
};
use ostler_server::{app::App, auth::Principal, service::commands};
use ostler_store as store;
use serde::Deserialize;

use super::{lookup, models::STATUS_VERSION};

const LABEL_CHARS_MAX: usize = 80;
const DESCRIPTION_CHARS_MAX: usize = 1_000;
const AGENT: &str = "agent";
const KINDS: [&str; 3] = [AGENT, "shell", "monitor"];

pub(crate) async fn list(app: &App, caller: &Principal, id: &str) -> Result<SessionTasks, Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let turns = store::daemon::turns::list_unfinished(&app.db, &open.session).await?;
    let now = app.now().as_millisecond();
    let tasks = turns.iter().map(|(command, alias)| task(command, alias.as_deref(), now)).collect();
    Ok(SessionTasks { v: STATUS_VERSION, session_id: open.session.public_id(), now, tasks })
}

fn task(command: &Command, prompt_id: Option<&str>, now: i64) -> SessionTask {
    #[derive(Default, Deserialize)]
    struct Payload {
        prompt: String,
    }
    let Payload { prompt } = command.payload.view().unwrap_or_default();
    let start_time = command.acked_at.unwrap_or(command.created_at).as_millisecond();
    let is_waiting = command.state == CommandState::Pending;
    SessionTask {
        kind: AGENT.to_owned(),
        id: prompt_id.map_or_else(|| command.command_id.to_string(), str::to_owned),
        label: clip(prompt.lines().next().unwrap_or_default(), LABEL_CHARS_MAX),
        description: clip(&prompt, DESCRIPTION_CHARS_MAX),
        status: if is_waiting { "paused" } else { "running" }.to_owned(),
        start_time,
        runtime_ms: if is_waiting { 0 } else { (now - start_time).max(0) },
        is_backgrounded: is_waiting,
    }
}

/// Cancels a prompt that waits or runs. Not an error if it has ended by now: then nothing is cancelled.
pub(crate) async fn cancel(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    task_id: &str,
    kind: Option<&str>,
) -> Result<TaskCancelled, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    if !kind.is_some_and(|kind| KINDS.contains(&kind)) {
        let message = "kind must be agent, shell or monitor";
        return Err(Failure::invalid(Rule::InvalidTaskKind, message).detail("allowed", KINDS.to_vec()));
    }
    let turns = store::daemon::turns::list_unfinished(&app.db, &open.session).await?;
    let is_named = |(command, alias): &&(Command, Option<String>)| {
        alias.as_deref() == Some(task_id) || command.command_id.to_string() == task_id
    };
    let found = turns.iter().find(is_named).filter(|_| kind == Some(AGENT));
    if let Some((command, _)) = found {
        commands::cancel(app, caller, command.command_id, Cancel::default()).await?;
    }
    let cancelled = found.is_some();
    Ok(TaskCancelled { session_id: open.session.public_id(), task_id: clip(task_id, LABEL_CHARS_MAX), cancelled })
}
