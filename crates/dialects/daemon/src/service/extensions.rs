//! Extensions of the coding agent. Changes run one after another: the agent's own command makes each in a home of its own, the changed
//! folders become those of later sessions, and the agent beside turns is started again with them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        extensions::{
            ExtensionAccepted, ExtensionOperation, ExtensionResult, ExtensionScope, ExtensionUpdates,
            ExtensionsRefreshed, InstallExtension, OperationState, WorkspaceExtensions, check_extension_name,
        },
        workspace::SNAPSHOT_VERSION,
    },
    text::clip,
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::companions::{self, CompanionKey, SharedChange, VerbOutput},
};
use serde_json::{Value, json};

use super::{companion, notes::Note, workspace};

/// How long one change may take: some fetch a repository.
const CHANGE_LIMIT: Duration = Duration::from_secs(180);
/// Changes that wait or run at once.
const PENDING_MAX: usize = 16;
/// Changes that are remembered.
const REMEMBERED_MAX: usize = 200;
const ERROR_CHARS_MAX: usize = 500;
/// The folders of the agent's home that its commands change.
const CHANGED: &[&str] = &[".qwen/extensions", ".qwen/extension-store"];
/// Changes after which an extension can start programs.
const STARTS_PROGRAMS: [&str; 2] = ["enable", "update"];

/// The changes of this process.
#[derive(Default)]
pub(crate) struct ExtensionOperations {
    /// Newest last.
    operations: Mutex<VecDeque<ExtensionOperation>>,
    /// Held by the change that runs.
    turn: tokio::sync::Mutex<()>,
}

/// What a change does.
struct Change {
    operation: &'static str,
    /// What it is called when it is done.
    done: &'static str,
    name: Option<String>,
    source: Option<String>,
    arguments: Vec<String>,
}

impl Change {
    /// Whether the program printed that it has done nothing. It ends with success then, too.
    fn has_done_nothing(&self, output: &str) -> bool {
        let Some(name) = &self.name else { return false };
        let messages = [
            format!("Extension \"{name}\" not found."),
            format!("Extension \"{name}\" is already up to date."),
            format!("Unable to install extension \"{name}\" due to missing install metadata"),
        ];
        output.lines().any(|line| messages.iter().any(|message| line.trim() == message))
    }
}

impl ExtensionOperations {
    fn of(app: &App) -> &Self {
        app.state()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<ExtensionOperation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, operation: ExtensionOperation) -> Result<(), Failure> {
        let mut operations = self.lock();
        let is_pending =
            |found: &&ExtensionOperation| matches!(found.status, OperationState::Queued | OperationState::Running);
        if operations.iter().filter(is_pending).count() >= PENDING_MAX {
            let message = format!("{PENDING_MAX} changes of extensions wait or run; try again later");
            return Err(Failure::rule(Rule::ExtensionQueueFull, message));
        }
        if operations.len() >= REMEMBERED_MAX {
            operations.pop_front();
        }
        operations.push_back(operation);
        Ok(())
    }

    fn update(&self, id: &str, change: impl FnOnce(&mut ExtensionOperation)) {
        if let Some(found) = self.lock().iter_mut().find(|operation| operation.operation_id == id) {
            change(found);
        }
    }
}

pub(crate) async fn list(app: &App, caller: &Principal) -> Result<WorkspaceExtensions, Failure> {
    workspace::check_read(app, caller)?;
    let key = companion::of_workspace(app).await?;
    let reply = companion::ask_workspace(app, &key, "extensions").await?;
    Ok(WorkspaceExtensions::of(workspace::cwd(app)?, reply.as_ref()))
}

pub(crate) fn operation(app: &App, caller: &Principal, id: &str) -> Result<ExtensionOperation, Failure> {
    workspace::check_read(app, caller)?;
    let found = ExtensionOperations::of(app).lock().iter().find(|operation| operation.operation_id == id).cloned();
    found.ok_or_else(|| Failure::rule(Rule::ExtensionOperationNotFound, "there is no such operation"))
}

pub(crate) async fn install(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: &InstallExtension,
) -> Result<ExtensionAccepted, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    companion::check_programs(app, caller, "an extension")?;
    let (source, arguments) = request.read()?;
    let source = Some(app.redactor.redact(&source).into_owned());
    let change = Change { operation: "install", done: "installed", name: None, source, arguments };
    submit(app, caller, client, change).await
}

/// Enables, disables, updates or uninstalls an extension.
pub(crate) async fn change(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    (operation, done): (&'static str, &'static str),
    name: &str,
    scope: Option<&ExtensionScope>,
) -> Result<ExtensionAccepted, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    if STARTS_PROGRAMS.contains(&operation) {
        companion::check_programs(app, caller, "an extension")?;
    }
    let name = check_extension_name(name)?.to_owned();
    let mut arguments = vec!["extensions".to_owned(), operation.to_owned(), name.clone()];
    if let Some(scope) = scope {
        arguments.push(format!("--scope={}", scope.read()?));
    }
    submit(app, caller, client, Change { operation, done, name: Some(name), source: None, arguments }).await
}

async fn submit(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    change: Change,
) -> Result<ExtensionAccepted, Failure> {
    app.accepting()?;
    let key = companion::of_workspace(app).await?;
    let (operation_id, now) = (app.ids.body().to_string(), app.now().as_millisecond());
    ExtensionOperations::of(app).add(ExtensionOperation {
        v: SNAPSHOT_VERSION,
        operation_id: operation_id.clone(),
        operation: change.operation.to_owned(),
        status: OperationState::Queued,
        created_at: now,
        updated_at: now,
        source: change.source.clone(),
        name: change.name.clone(),
        result: None,
        error: None,
    })?;
    let (app, caller, id) = (app.clone(), caller.clone(), operation_id.clone());
    // The change goes on when the client hangs up, and is given up when the server stops.
    tokio::spawn(async move {
        tokio::select! {
            () = run(&app, &caller, client, &key, &id, change) => {}
            () = app.stopped() => {}
        }
    });
    Ok(ExtensionAccepted { accepted: true, operation_id })
}

async fn run(app: &App, caller: &Principal, client: Option<String>, key: &CompanionKey, id: &str, change: Change) {
    let operations = ExtensionOperations::of(app);
    let _turn = operations.turn.lock().await;
    let now = || app.now().as_millisecond();
    operations.update(id, |found| (found.status, found.updated_at) = (OperationState::Running, now()));
    let is_done = |output: &VerbOutput| output.succeeded && !change.has_done_nothing(&output.text);
    let changing = SharedChange { arguments: &change.arguments, folders: CHANGED, limit: CHANGE_LIMIT };
    let output = match companions::change_shared_home(app, key, changing, is_done).await {
        Ok(output) if is_done(&output) => output.text,
        Ok(output) => return failed(app, caller, client, id, &change, &cause(&output.text)).await,
        Err(failure) => return failed(app, caller, client, id, &change, &failure.message).await,
    };
    let restarted = companions::restart(app, key).await;
    let name = change.name.clone().or_else(|| quoted(&output));
    let version = match (&restarted, &name) {
        (Ok(()), Some(name)) => version(app, key, name).await,
        _ => None,
    };
    let (refreshed, failures) = if restarted.is_ok() { (1, 0) } else { (0, 1) };
    let result = ExtensionResult {
        status: change.done.to_owned(),
        source: change.source.clone(),
        name: name.clone(),
        version: version.clone(),
        refreshed,
        failed: failures,
    };
    let mut data = json!({"refreshed": refreshed, "failed": failures, "status": change.done});
    for (member, value) in [("source", change.source), ("name", name), ("version", version)] {
        if let Some(value) = value {
            data[member] = value.into();
        }
    }
    operations.update(id, |found| {
        (found.result, found.updated_at) = (Some(result), now());
        match restarted {
            Ok(()) => found.status = OperationState::Succeeded,
            Err(failure) => {
                found.status = OperationState::SucceededWithRefreshError;
                found.error = Some(redact_reason(app, &failure.message));
            }
        }
    });
    workspace::announce(app, caller, &Note { frame: "extensions_changed", data, client }).await;
}

async fn failed(app: &App, caller: &Principal, client: Option<String>, id: &str, change: &Change, reason: &str) {
    let error = redact_reason(app, reason);
    ExtensionOperations::of(app).update(id, |found| {
        (found.status, found.updated_at) = (OperationState::Failed, app.now().as_millisecond());
        found.error = Some(error.clone());
    });
    let mut data = json!({"refreshed": 0, "failed": 0, "status": "failed", "error": error});
    for (member, value) in [("source", &change.source), ("name", &change.name)] {
        if let Some(value) = value {
            data[member] = value.as_str().into();
        }
    }
    workspace::announce(app, caller, &Note { frame: "extensions_changed", data, client }).await;
}

/// A reason as clients see it: redacted, and not too long.
fn redact_reason(app: &App, reason: &str) -> String {
    clip(&app.redactor.redact(reason.trim()), ERROR_CHARS_MAX)
}

/// The part of a failed command's output that has the reason: the message of an error that was thrown, or what follows the usage, or all of
/// it. If it is too long, its end.
fn cause(output: &str) -> String {
    let lines: Vec<&str> = output.trim().lines().map(str::trim_end).collect();
    let paragraph = |from: usize| {
        let rest = lines[from..].iter().skip(1);
        let goes_on = |line: &&&str| !line.is_empty() && !line.trim_start().starts_with("at ");
        [lines[from]].into_iter().chain(rest.take_while(goes_on).copied()).collect::<Vec<_>>().join("\n")
    };
    let thrown = lines.iter().rposition(|line| thrown_message(line).is_some());
    if let Some(at) = thrown {
        let whole = paragraph(at);
        return end_of(thrown_message(&whole).unwrap_or(&whole));
    }
    let has_usage = lines.iter().any(|line| ["Options:", "Positionals:", "Commands:"].contains(line));
    match lines.iter().rposition(|line| line.is_empty()) {
        Some(blank) if has_usage && blank + 1 < lines.len() => end_of(&paragraph(blank + 1)),
        _ => end_of(&lines.join("\n")),
    }
}

/// What follows the name of an error at the beginning of a text, such as `FatalConfigError: `.
fn thrown_message(text: &str) -> Option<&str> {
    let (name, message) = text.split_once(": ")?;
    let is_name = name.ends_with("Error") && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    Some(message).filter(|_| is_name)
}

/// The last characters of a text, if it is too long.
fn end_of(text: &str) -> String {
    match text.char_indices().rev().nth(ERROR_CHARS_MAX - 1) {
        Some((from, _)) if from > 0 => {
            let from = text.char_indices().rev().nth(ERROR_CHARS_MAX - 2).map_or(from, |(from, _)| from);
            format!("…{}", &text[from..])
        }
        _ => text.to_owned(),
    }
}

/// The first text in quotes: how the agent's command names what it has installed.
fn quoted(output: &str) -> Option<String> {
    let name = output.split('"').nth(1)?;
    check_extension_name(name).ok().map(str::to_owned)
}

async fn version(app: &App, key: &CompanionKey, name: &str) -> Option<String> {
    let reply = companion::ask_workspace(app, key, "extensions").await.ok()??;
    let found = reply["extensions"].as_array()?.iter().find(|extension| extension["name"] == name)?;
    found["version"].as_str().map(str::to_owned)
}

/// Starts the agent beside turns again, with the extensions as they are now.
pub(crate) async fn refresh(
    app: &App,
    caller: &Principal,
    client: Option<String>,
) -> Result<ExtensionsRefreshed, Failure> {
    workspace::check_configure(app, caller, client.as_deref()).await?;
    let key = companion::of_workspace(app).await?;
    let _turn = ExtensionOperations::of(app).turn.lock().await;
    companions::restart(app, &key).await?;
    let data = json!({"refreshed": 1, "failed": 0});
    workspace::announce(app, caller, &Note { frame: "extensions_changed", data, client }).await;
    Ok(ExtensionsRefreshed { refreshed: 1, failed: 0 })
}

/// Whether there are newer versions, as far as the agent knows.
pub(crate) async fn check_updates(
    app: &App,
    caller: &Principal,
    client: Option<&str>,
) -> Result<ExtensionUpdates, Failure> {
    workspace::check_configure(app, caller, client).await?;
    let key = companion::of_workspace(app).await?;
    let method = "qwen/status/workspace/extensions";
    let reply = companions::ask(app, &key, method, |_| json!({}), companion::STATUS_LIMIT).await?;
    let state = |extension: &Value| {
        let state = extension["updateState"].as_str().unwrap_or("unknown");
        Some((extension["name"].as_str()?.to_owned(), state.to_owned()))
    };
    let states: BTreeMap<_, _> = reply["extensions"].as_array().into_iter().flatten().filter_map(state).collect();
    Ok(ExtensionUpdates { states })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_failure_is_what_follows_the_usage_or_was_thrown() {
        let usage = format!("qwen enable <name>\n\nEnables it.\n\nOptions:\n  --scope  {}\n\n", "x".repeat(600));
        let absent = "Extension with name zz does not exist.";
        let outputs = [
            format!("{usage}{absent}\n"),
            format!("{usage}FatalConfigError: {absent}\n    at handleEnable (file:///a.js:1:2)\n  exitCode: 52\n"),
            format!(
                "file:///a.js:1\n    throw new Error();\n    ^\n\nError: {absent}\n    at b (c.js:1:2)\n\nNode.js v22\n"
            ),
            format!("\n{absent}\n"),
        ];
        for output in outputs {
            assert_eq!(cause(&output), absent, "{output}");
        }
        assert_eq!(cause("Cloning…\n\nInstall source not found: /a"), "Cloning…\n\nInstall source not found: /a");
        let long = cause(&format!("{}the end", "é\n".repeat(600)));
        assert!(long.starts_with('…') && long.ends_with("the end"), "{long}");
        assert_eq!(long.chars().count(), ERROR_CHARS_MAX);
        assert_eq!((cause(""), cause("\n")), (String::new(), String::new()));
    }

    #[test]
    fn only_whole_lines_of_known_messages_mean_that_nothing_was_done() {
        let named = |name: Option<&str>| Change {
            operation: "update",
            done: "updated",
            name: name.map(str::to_owned),
            source: None,
            arguments: vec![],
        };
        let nothing = [
            "Extension \"demo\" not found.",
            "warning\nExtension \"demo\" is already up to date.\n",
            "Unable to install extension \"demo\" due to missing install metadata",
        ];
        for output in nothing {
            assert!(named(Some("demo")).has_done_nothing(output), "{output}");
            assert!(!named(Some("other")).has_done_nothing(output), "{output}");
            assert!(!named(None).has_done_nothing(output), "{output}");
        }
        let done = "README not found\nExtension \"demo\" successfully updated: 1 → 2: the cache is already up to date.";
        assert!(!named(Some("demo")).has_done_nothing(done));
    }
}
