//! `ostler diff`: what an agent changed in its workspace in one turn, coloured on a terminal, as a patch in a pipe.

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    kernel::{
        runs::ListRuns,
        workspaces::{ChangedFile, CommandDiff, WorkspaceChanges},
    },
};

use crate::{
    candidates,
    connection::Connection,
    errors, exit_codes,
    targets::{self, Within},
    terminal::{
        output::{self, Output, count, harmless, line},
        paint::Paint,
    },
};

/// Show what an agent changed in its workspace
///
/// In a pipe the output is a patch, which `git apply` accepts unless it was too long to be stored whole. Binary files are
/// not part of it; a line names each, and `--stat` lists them.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler diff\n  ostler diff my-session --stat\n  ostler diff RUN | git apply")]
pub(crate) struct DiffArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its active or latest one; the latest run when left out")]
    run: Option<String>,
    /// The changes of this command instead of the latest, by its id or the beginning of it
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    command: Option<String>,
    /// Show only the names and sizes of the changes
    #[arg(long)]
    stat: bool,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn diff(connection: &Connection, args: &DiffArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run = match &args.run {
        Some(word) => finder.run(word).await?,
        None => latest(&finder.client).await?,
    };
    let command = match &args.command {
        Some(word) => finder.command(&run, word).await?,
        None => latest_command(&finder.client, &run).await?,
    };
    let diff = finder.client.command_diff(&run, &command).await?;
    let stat = args.stat;
    args.output.one(&diff, || if stat { summary(&diff, Paint::stdout()) } else { patch(&diff, Paint::stdout()) });
    if diff.changes.unknown {
        output::message(&unknown(&diff.changes));
    }
    if diff.changes.truncated {
        output::message("the patch was shortened; the workspace has all changes\n");
    }
    if diff.changes.files.iter().any(|file| file.binary) {
        output::message("binary files are not part of the patch; the workspace has them\n");
    }
    Ok(exit_codes::OK)
}

async fn latest(client: &Client) -> Result<String, Failure> {
    let page = client.list_runs(&ListRuns { limit: Some(1), ..ListRuns::default() }).await?;
    let run = page.runs.into_iter().next().map(|run| run.run_id.to_string());
    run.ok_or_else(|| {
        errors::hinted(FailureKind::NotFound, "there is no run yet", "start one: ostler run \"say hello\"")
    })
}

async fn latest_command(client: &Client, run: &str) -> Result<String, Failure> {
    let command = client.run_result(run, None).await?.command_id;
    command.map(|id| id.to_string()).ok_or_else(|| targets::unknown("command in run", run))
}

/// The patch unchanged; for a terminal with colour and without control characters.
fn patch(diff: &CommandDiff, paint: Paint) -> String {
    if !paint.is_on() {
        return diff.changes.diff.clone();
    }
    let mut out = String::new();
    for text in diff.changes.diff.lines() {
        let text = harmless(text);
        let painted = match text.as_bytes().first() {
            _ if text.starts_with("diff --git") => paint.bold(&text),
            _ if text.starts_with("+++") || text.starts_with("---") => paint.bold(&text),
            Some(b'+') => paint.green(&text),
            Some(b'-') => paint.red(&text),
            Some(b'@') => paint.dim(&text),
            _ => text.to_string(),
        };
        out.push_str(&painted);
        out.push('\n');
    }
    out
}

/// A message, because an empty patch alone would look like no changes.
fn unknown(changes: &WorkspaceChanges) -> String {
    let reason = changes.reason.as_deref().unwrap_or("the runner gave no reason");
    format!("the changes are unknown: {}\n", line(reason, 300))
}

fn summary(diff: &CommandDiff, paint: Paint) -> String {
    let changes = &diff.changes;
    if changes.unknown {
        return "changes unknown\n".into();
    }
    let width = changes.files.iter().map(|file| line(&file.path, 200).chars().count()).max().unwrap_or(0);
    let mut out: String = changes.files.iter().map(|file| file_line(file, width, paint)).collect();
    let listed = changes.files.len() as i64;
    if changes.files_changed > listed {
        out.push_str(&format!("… and {} more\n", changes.files_changed - listed));
    }
    let (added, removed) = (changes.bytes_added, changes.bytes_removed);
    out.push_str(&format!(
        "{} changed, {added} bytes added, {removed} removed\n",
        count(changes.files_changed, "file")
    ));
    out
}

fn file_line(file: &ChangedFile, width: usize, paint: Paint) -> String {
    let how_much = if file.binary {
        "binary".to_owned()
    } else {
        format!("{} {}", paint.green(&format!("+{}", file.bytes_added)), paint.red(&format!("-{}", file.bytes_removed)))
    };
    format!("{:<9} {:<width$} {how_much}\n", line(&file.change, 9), line(&file.path, 200))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> CommandDiff {
        serde_json::from_value(serde_json::json!({
            "runId": "run_00000000000000000000000000000001", "commandId": "cmd_00000000000000000000000000000001",
            "filesChanged": 3, "bytesAdded": 10, "bytesRemoved": 4,
            "files": [{"path": "a", "change": "added", "bytesAdded": 10},
                {"path": "long", "change": "modified", "bytesRemoved": 4}],
            "diff": "diff --git a/a b/a\n@@ -0,0 +1 @@\n+hi\u{1b}[2J\n", "truncated": true}))
        .unwrap()
    }

    #[test]
    fn a_pipe_gets_the_patch_unchanged() {
        assert_eq!(patch(&sample(), Paint::PLAIN), sample().changes.diff);
    }

    #[test]
    fn unknown_changes_do_not_look_like_none() {
        let changes = WorkspaceChanges::unknown("git is not on the server's PATH".into());
        let diff = CommandDiff { changes, ..sample() };
        assert_eq!(summary(&diff, Paint::PLAIN), "changes unknown\n");
        assert_eq!(unknown(&diff.changes), "the changes are unknown: git is not on the server's PATH\n");
    }

    #[test]
    fn the_summary_names_and_counts_the_files() {
        let text =
            "added     a    +10 -0\nmodified  long +0 -4\n… and 1 more\n3 files changed, 10 bytes added, 4 removed\n";
        assert_eq!(summary(&sample(), Paint::PLAIN), text);
    }
}
