//! Rewinds: the conversation continues before one of its turns, and files that later turns have changed are restored. The turns stay
//! in the log.

mod files;

use std::collections::BTreeSet;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    daemon::rewinds::{
        DiffStats, RewindSession, RewindSnapshot, RewindSnapshots, SessionRewound, snapshot_id, turn_number,
    },
    kernel::{
        operations::{ChangeSessionOp, SessionChange},
        sessions::Session,
        turns::NumberedTurn,
    },
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{conversation, snapshots},
};
use ostler_store as store;
use serde_json::json;

use super::{
    lookup::{self, OpenSession, not_found},
    notes::{self, Note},
    prompts::dismiss_idle,
    restores::RestoreLock,
    sessions::RETRY_AFTER_MS,
};

/// How many of the newest turns are listed.
const SNAPSHOTS_MAX: usize = 200;

/// The turns that the session can be rewound to, the oldest first.
pub(crate) async fn list(app: &App, caller: &Principal, id: &str) -> Result<RewindSnapshots, Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let session_id = open.session.public_id();
    let turns = conversation::turns(app, open.session.session).await?;
    let (mut listed, mut stats, mut files) = (vec![], DiffStats::default(), BTreeSet::new());
    for (turn_index, numbered) in turns.iter().enumerate().rev().take(SNAPSHOTS_MAX) {
        if let Some(recorded) = snapshots::changes(app, &numbered.turn).await? {
            let changes = recorded.changes;
            stats.insertions += changes.lines_added;
            stats.deletions += changes.lines_removed;
            // Files that the report does not name are counted, even if another turn has changed them, too.
            stats.files_changed += (changes.files_changed - changes.files.len() as i64).max(0);
            let new = changes.files.into_iter().filter(|file| files.insert(file.path.clone())).count();
            stats.files_changed += new as i64;
        }
        listed.push(RewindSnapshot {
            prompt_id: snapshot_id(&session_id, numbered.number),
            turn_index,
            timestamp: numbered.turn.submitted_at,
            diff_stats: stats,
        });
    }
    listed.reverse();
    Ok(RewindSnapshots { snapshots: listed })
}

/// Rewinds the session to the state before a turn.
pub(crate) async fn rewind(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &RewindSession,
) -> Result<SessionRewound, Failure> {
    let (prompt_id, restores_files) = (request.prompt_id()?.to_owned(), request.rewind_files()?);
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let (caller, client) = (caller.clone(), client.map(str::to_owned));
    // Once the conversation is rewound, files and followers must follow, also if the client hangs up.
    app.to_the_end(move |app| async move {
        let mut lock = RestoreLock::take(&app, &open.session).await?;
        let by = (&caller, client);
        let outcome = rewind_locked(&app, by, &open, &prompt_id, restores_files.then_some(&mut lock)).await;
        lock.release(&app).await;
        outcome
    })
    .await
}

/// Rewinds the session while it is locked. `lock`: files are restored, too.
async fn rewind_locked(
    app: &App,
    (caller, client): (&Principal, Option<String>),
    open: &OpenSession,
    prompt_id: &str,
    lock: Option<&mut RestoreLock>,
) -> Result<SessionRewound, Failure> {
    let (target_turn_index, undone) = rewind_conversation(app, caller, open, prompt_id).await?;
    let restored = match lock {
        Some(lock) => files::restore(app, open, &undone, lock).await,
        None => Ok(files::Restored::default()),
    };
    // Followers learn of the rewind also if the store failed while files were restored.
    let (restored, failure) = match restored {
        Ok(restored) => (restored, None),
        Err(failure) => (files::Restored::default(), Some(failure)),
    };
    let files::Restored { changed: files_changed, failed: files_failed } = restored;
    let data = json!({"sessionId": open.session.public_id(), "promptId": prompt_id,
        "targetTurnIndex": target_turn_index, "filesChanged": files_changed, "filesFailed": files_failed});
    notes::record(app, caller, open.session.session, &Note { frame: "session_rewound", data, client }).await?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(SessionRewound { rewound: files_failed.is_empty(), target_turn_index, files_changed, files_failed })
}

/// The index of the turn in the conversation, and the turns that no longer belong to it.
async fn rewind_conversation(
    app: &App,
    caller: &Principal,
    open: &OpenSession,
    prompt_id: &str,
) -> Result<(usize, Vec<NumberedTurn>), Failure> {
    let (id, session_id) = (open.session.session, open.session.public_id());
    let busy = || Failure::new(FailureKind::SessionBusy, "the session works on a prompt");
    let busy = || busy().detail("sessionId", session_id.as_str()).detail("retryAfterMs", RETRY_AFTER_MS);
    let mut attempts = app.db.attempts(busy);
    loop {
        attempts.start_next()?;
        let session = store::kernel::sessions::get(&app.db, id).await?.ok_or_else(|| not_found(&session_id))?;
        let mut turns = conversation::turns(app, id).await?;
        if session.active_unfinished > 0 {
            return Err(busy());
        }
        let index = target(&turns, &session, prompt_id)?;
        let undone = turns.split_off(index);
        let Some(first) = undone.first() else { return Err(busy()) };
        let change = SessionChange::Rewind { before: first.turn.command_id, at_seq: session.last_seq };
        match app.try_submit(id, None, ChangeSessionOp { change, by: caller.name() }).await {
            Ok(Some(_)) => return Ok((index, undone)),
            Ok(None) => {}
            Err(failure) if failure.broken_rule() == Some(Rule::SessionMovedOn) => {}
            // A runner that waits for work would continue the thread that it knows.
            Err(failure) if failure.kind == FailureKind::SessionBusy => dismiss_idle(app, &session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

/// The index of the turn that the snapshot was made before.
fn target(turns: &[NumberedTurn], session: &Session, prompt_id: &str) -> Result<usize, Failure> {
    let number = turn_number(&session.public_id(), prompt_id);
    let found = turns.iter().position(|numbered| Some(numbered.number) == number);
    let unknown = || Failure::invalid(Rule::InvalidRewindTarget, "promptId names no turn of this conversation");
    found.ok_or_else(|| unknown().detail("sessionId", session.public_id()))
}
