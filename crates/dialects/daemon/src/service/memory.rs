//! Memory files: a list of them, changes, and what precedes a prompt.

use std::time::Duration;

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        cells::{CellErrorKind, StatusCell},
        memory::{
            MEMORY_FILES, MemoryChange, MemoryFile, MemoryMode, MemoryScope, MemoryStatus, MemoryWritten, WriteMemory,
            rule_count,
        },
        workspace::SNAPSHOT_VERSION,
    },
    kernel::context,
};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
};
use serde_json::json;

use super::{
    documents::{self, Document, DocumentPlace, WriteOutcome},
    notes::Note,
    settings,
    workspace::{self, WorkspaceState},
};

/// The server's own memory, in the data directory.
const GLOBAL: DocumentPlace = DocumentPlace::Data("memory/global.md");
/// How long a change may take, with the wait for other changes of the file.
const CHANGE_MAX: Duration = Duration::from_secs(10);
/// Most bytes of memory before one prompt. The rest of the payload is for the prompt itself.
const CONTEXT_BYTES_MAX: usize = 64 * 1024;
const CUT: &str = "\n[The rest of this file is left out.]";

/// Every memory file, in the order in which agents get them.
fn places() -> impl Iterator<Item = (MemoryScope, DocumentPlace)> {
    let in_workspace = MEMORY_FILES.map(|name| (MemoryScope::Workspace, DocumentPlace::Workspace(name)));
    [(MemoryScope::Global, GLOBAL)].into_iter().chain(in_workspace)
}

pub(crate) async fn get(app: &App, caller: &Principal) -> Result<MemoryStatus, Failure> {
    workspace::check_read(app, caller)?;
    let (mut files, mut rules, mut errors) = (vec![], 0, vec![]);
    for (scope, place) in places() {
        let path = place.shown_path(app)?;
        match documents::read(app, place).await {
            Ok(None) => {}
            Ok(Some(Document { text, .. })) => {
                rules += rule_count(&text);
                files.push(MemoryFile { kind: "memory_file".to_owned(), path, scope, bytes: text.len() });
            }
            Err(failure) => {
                let error = format!("{path}: {}", failure.message);
                errors.push(StatusCell::error("memory_file", CellErrorKind::StatFailed, error));
            }
        }
    }
    Ok(MemoryStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        initialized: true,
        total_bytes: files.iter().map(|file| file.bytes).sum(),
        file_count: files.len(),
        rule_count: rules,
        files,
        errors,
    })
}

/// Appends to a memory file, or replaces it, and notifies the clients of open sessions if it has changed. The server's own memory
/// precedes the prompts of everyone, so that only the operator writes it.
pub(crate) async fn write(
    app: &App,
    caller: &Principal,
    client: Option<String>,
    request: WriteMemory,
) -> Result<MemoryWritten, Failure> {
    workspace::check_change(app, caller, client.as_deref()).await?;
    let change = request.read()?;
    if change.scope == MemoryScope::Global {
        Access::Operate.admit(caller)?;
    }
    let caller = caller.clone();
    app.to_the_end(move |app| async move {
        let late = || Failure::rule(Rule::MemoryWriteTimeout, "the memory file could not be written in time");
        let written = tokio::time::timeout(CHANGE_MAX, apply(&app, &change)).await.map_err(|_| late())??;
        if written.changed {
            let MemoryWritten { file_path, bytes_written, mode, .. } = &written;
            let data = json!({"scope": change.scope, "filePath": file_path, "mode": mode,
                "bytesWritten": bytes_written});
            workspace::announce(&app, &caller, &Note { frame: "memory_changed", data, client }).await;
        }
        Ok(written)
    })
    .await
}

async fn apply(app: &App, change: &MemoryChange) -> Result<MemoryWritten, Failure> {
    let state = WorkspaceState::of(app);
    let lock = match change.scope {
        MemoryScope::Workspace => &state.memory,
        MemoryScope::Global => &state.global_memory,
    };
    let _lock = lock.lock().await;
    let contended = || Failure::rule(Rule::FileError, "the memory file is being changed by others");
    let mut attempts = documents::attempts(contended);
    loop {
        attempts.start_next()?;
        let (place, document) = match change.scope {
            MemoryScope::Workspace => current(app).await?,
            MemoryScope::Global => (GLOBAL, documents::read(app, GLOBAL).await?),
        };
        let file_path = place.shown_path(app)?;
        let written = |bytes_written: usize, changed: bool| {
            let mode: MemoryMode = change.mode;
            MemoryWritten { ok: true, file_path, bytes_written, mode, changed }
        };
        let Some(changed) = change.apply(document.as_ref().map(|document| document.text.as_str()))? else {
            return Ok(written(0, false));
        };
        match documents::write(app, place, changed.text, document.as_ref()).await? {
            WriteOutcome::Done => return Ok(written(changed.bytes_written, true)),
            WriteOutcome::Outdated => {}
        }
    }
}

/// The memory file of the workspace that is written: the first one that exists, otherwise the first name.
pub(super) async fn current(app: &App) -> Result<(DocumentPlace, Option<Document>), Failure> {
    for name in MEMORY_FILES {
        let place = DocumentPlace::Workspace(name);
        if let Some(document) = documents::read(app, place).await? {
            return Ok((place, Some(document)));
        }
    }
    Ok((DocumentPlace::Workspace(MEMORY_FILES[0]), None))
}

/// What precedes a prompt in the workspace: the memory files, unless the settings switch them off. A file that cannot be read is
/// left out, so that it does not prevent prompts.
pub(crate) async fn context(app: &App) -> Vec<context::Note> {
    notes_of(texts(app).await)
}

/// The memory files that precede a prompt, with the bytes of each that an agent gets.
pub(super) async fn sizes(app: &App) -> Vec<(String, u64)> {
    let texts = texts(app).await;
    let names: Vec<String> = texts.iter().map(|(name, _)| name.clone()).collect();
    names.into_iter().zip(notes_of(texts).into_iter().map(|note| note.value.len() as u64)).collect()
}

/// The texts of the memory files by name.
async fn texts(app: &App) -> Vec<(String, String)> {
    if workspace::cwd(app).is_err() || !settings::effective(app).await.memory_enabled {
        return vec![];
    }
    let mut texts: Vec<(String, String)> = vec![];
    for (_, place) in places() {
        let document = documents::read(app, place).await.unwrap_or_else(|failure| {
            tracing::warn!(%failure, ?place, "a memory file is left out");
            None
        });
        // One file may be a link to the other.
        let is_new = |document: &Document| texts.iter().all(|(_, text)| *text != document.text);
        if let Some(document) = document.filter(|document| !document.text.trim().is_empty() && is_new(document)) {
            texts.push((place.name().to_owned(), document.text));
        }
    }
    texts
}

fn notes_of(texts: Vec<(String, String)>) -> Vec<context::Note> {
    let mut bytes_left = CONTEXT_BYTES_MAX;
    let mut notes = vec![];
    for (name, text) in texts {
        let is_cut = text.len() > bytes_left;
        let value = shortened(text, bytes_left);
        bytes_left = bytes_left.saturating_sub(value.len());
        notes.push(context::Note { description: format!("Memory ({name})"), value });
        if is_cut {
            break;
        }
    }
    notes
}

/// The beginning of the text, with a remark if there is more.
fn shortened(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let end = text.floor_char_boundary(bytes_max.saturating_sub(CUT.len()));
    text[..end].to_owned() + CUT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_before_a_prompt_is_bounded() {
        let file = |name: &str, bytes: usize| (name.to_owned(), "é".repeat(bytes / 2));
        let notes = notes_of(vec![file("a", 1_000), file("b", CONTEXT_BYTES_MAX), file("c", 1_000)]);
        assert_eq!(notes.len(), 2);
        assert_eq!((notes[0].description.as_str(), notes[0].value.len()), ("Memory (a)", 1_000));
        assert!(notes[1].value.ends_with(CUT) && notes[1].value.len() <= CONTEXT_BYTES_MAX - 1_000);
    }
}
