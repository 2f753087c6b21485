//! Initialising a workspace: a memory file with a template, for people and agents to fill in.

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        memory::MEMORY_FILES,
        workspace::{InitAction, InitWorkspace, WorkspaceInitialized},
    },
    json::value_of,
};
use ostler_server::{app::App, auth::Principal};

use super::{
    documents::{self, Document, DocumentPlace, WriteOutcome},
    memory,
    notes::Note,
    workspace::{self, WorkspaceState},
};

const TEMPLATE: &str = "\
# Notes for agents

What agents should know before they work in this directory. This file precedes every prompt: keep it short.

## Commands

- Build:
- Test:
- Format and lint:

## Conventions

-

## Do not

-
";

/// Creates the memory file of the workspace. One that has content is only overwritten by `force`.
pub(crate) async fn init(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: InitWorkspace,
) -> Result<WorkspaceInitialized, Failure> {
    workspace::check_change(app, caller, client.as_deref()).await?;
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let lock = WorkspaceState::of(&app).memory.lock().await;
        let initialized = create(&app, request.force.unwrap_or(false)).await?;
        drop(lock);
        if initialized.action != InitAction::Noop {
            let data = value_of(&initialized);
            workspace::announce(&app, &caller, &Note { frame: "workspace_initialized", data, client }).await;
        }
        Ok(initialized)
    })
    .await
}

async fn create(app: &App, force: bool) -> Result<WorkspaceInitialized, Failure> {
    for name in MEMORY_FILES {
        if DocumentPlace::Workspace(name).is_link(app)? {
            let message = format!("{name} is a symbolic link");
            return Err(Failure::invalid(Rule::PathEscape, message).detail("path", name));
        }
    }
    let (place, document) = memory::current(app).await?;
    let path = place.shown_path(app)?;
    let action = match &document {
        None => InitAction::Created,
        Some(Document { text, .. }) if text.trim().is_empty() => {
            return Ok(WorkspaceInitialized { path, action: InitAction::Noop });
        }
        Some(_) if force => InitAction::Overwrote,
        Some(Document { text, .. }) => return Err(conflict(&path, text.len())),
    };
    match documents::write(app, place, TEMPLATE.to_owned(), document.as_ref()).await? {
        WriteOutcome::Done => Ok(WorkspaceInitialized { path, action }),
        WriteOutcome::Outdated => {
            let size = documents::read(app, place).await?.map_or(0, |document| document.text.len());
            Err(conflict(&path, size))
        }
    }
}

fn conflict(path: &str, existing_size: usize) -> Failure {
    Failure::rule(Rule::WorkspaceInitConflict, "the workspace has a memory file already; force overwrites it")
        .detail("path", path)
        .detail("existingSize", existing_size)
}
