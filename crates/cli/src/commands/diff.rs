//! `ostler diff`: what an agent changed in its workspace in one turn, coloured on a terminal, as a patch in a pipe.

use std::collections::BTreeMap;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    kernel::workspaces::{CHANGES_REMOVED, ChangedFile, CommandDiff, WorkspaceChanges},
};

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
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
    /// Show only the names of the files, and how many lines of each were changed
    #[arg(long)]
    stat: bool,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn diff(connection: &Connection, args: &DiffArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run = finder.run_or_latest(args.run.as_deref()).await?;
    let command = match &args.command {
        Some(word) => finder.command(&run, word).await?,
        None => latest_command(&finder.client, &run).await?,
    };
    let diff = finder.client.command_diff(&run, &command).await?;
    let stat = args.stat;
    args.output.one(&diff, || if stat { summary(&diff, Paint::stdout()) } else { patch(&diff, Paint::stdout()) });
    if diff.changes.unknown {
        output::message(&unknown(&diff.changes));
    } else if diff.changes.files_changed == 0 {
        output::message("nothing was changed\n");
    }
    if diff.changes.truncated {
        output::message("the patch was shortened; the workspace has all changes\n");
    }
    if diff.changes.files.iter().any(|file| file.binary) {
        output::message("binary files are not part of the patch; the workspace has them\n");
    }
    Ok(exit_codes::OK)
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
    if reason == CHANGES_REMOVED {
        return match changes.files_changed {
            0 => format!("{reason}\n"),
            files => format!("{reason}; {} had changed\n", count(files, "file")),
        };
    }
    format!("the changes are unknown: {}\n", line(reason, 300))
}

fn summary(diff: &CommandDiff, paint: Paint) -> String {
    let changes = &diff.changes;
    if changes.unknown {
        return "changes unknown\n".into();
    }
    if changes.files_changed == 0 {
        return String::new();
    }
    let width = changes.files.iter().map(|file| line(&file.path, 200).chars().count()).max().unwrap_or(0);
    // A shortened patch has not every line.
    let lines = if changes.truncated { BTreeMap::new() } else { lines_by_path(&changes.diff) };
    let mut out: String = changes.files.iter().map(|file| file_line(file, &lines, width, paint)).collect();
    let listed = changes.files.len() as i64;
    if changes.files_changed > listed {
        out.push_str(&format!("… and {} more\n", changes.files_changed - listed));
    }
    let files = count(changes.files_changed, "file");
    let is_counted = changes.files.iter().all(|file| file.binary || lines.contains_key(&file.path));
    let (added, removed, unit) = match is_counted && changes.files_changed == listed {
        true => {
            let sum = lines.values().fold((0, 0), |sum, lines| (sum.0 + lines.0, sum.1 + lines.1));
            (sum.0, sum.1, "line")
        }
        false => (changes.bytes_added, changes.bytes_removed, "byte"),
    };
    out.push_str(&format!("{files} changed, {} added, {removed} removed\n", count(added, unit)));
    out
}

/// The lines added and removed, by the path of the file.
type LineCounts = BTreeMap<String, (i64, i64)>;

/// Counts the lines of a patch for each file that it names.
fn lines_by_path(patch: &str) -> LineCounts {
    let mut counts = LineCounts::new();
    // In the head of a file `---` and `+++` name it; in a hunk they begin changed lines.
    let (mut path, mut in_hunk) = (None::<String>, false);
    for text in patch.lines() {
        if text.starts_with("diff --git ") {
            (path, in_hunk) = (None, false);
        } else if text.starts_with("@@") {
            in_hunk = true;
        } else if !in_hunk {
            let named = text.strip_prefix("--- a/").or_else(|| text.strip_prefix("+++ b/"));
            path = named.map(|name| name.trim_end_matches('\t').to_owned()).or(path);
        } else if let Some(path) = &path {
            let (added, removed) = counts.entry(path.clone()).or_default();
            *added += i64::from(text.starts_with('+'));
            *removed += i64::from(text.starts_with('-'));
        }
    }
    counts
}

fn file_line(file: &ChangedFile, lines: &LineCounts, width: usize, paint: Paint) -> String {
    let plus_minus = |added: i64, removed: i64, unit: &str| {
        format!("{} {}{unit}", paint.green(&format!("+{added}")), paint.red(&format!("-{removed}")))
    };
    let how_much = match lines.get(&file.path) {
        _ if file.binary => "binary".to_owned(),
        Some((added, removed)) => plus_minus(*added, *removed, ""),
        None => plus_minus(file.bytes_added, file.bytes_removed, " bytes"),
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
    fn changes_that_retention_removed_do_not_look_like_none() {
        let removed = WorkspaceChanges { files_changed: 2, ..WorkspaceChanges::unknown(CHANGES_REMOVED.into()) };
        assert_eq!(unknown(&removed), "the changes were removed by retention; 2 files had changed\n");
        let uncounted = WorkspaceChanges::unknown(CHANGES_REMOVED.into());
        assert_eq!(unknown(&uncounted), "the changes were removed by retention\n");
        let diff = CommandDiff { changes: removed, ..sample() };
        assert_eq!(
            (patch(&diff, Paint::PLAIN).as_str(), summary(&diff, Paint::PLAIN).as_str()),
            ("", "changes unknown\n")
        );
    }

    #[test]
    fn the_summary_names_and_counts_the_files() {
        let text = "added     a    +10 -0 bytes\nmodified  long +0 -4 bytes\n… and 1 more\n3 files changed, 10 bytes added, 4 removed\n";
        assert_eq!(summary(&sample(), Paint::PLAIN), text);
    }

    #[test]
    fn the_summary_counts_lines_if_the_patch_is_whole() {
        let mut diff = sample();
        diff.changes.truncated = false;
        diff.changes.files_changed = 2;
        diff.changes.diff = "diff --git a/a b/a\n--- /dev/null\n+++ b/a\n@@ -0,0 +1,2 @@\n+hi\n+++ more\n\
            diff --git a/long b/long\n--- a/long\n+++ b/long\n@@ -1,2 +1 @@\n one\n-two\n"
            .into();
        let text = "added     a    +2 -0\nmodified  long +0 -1\n2 files changed, 2 lines added, 1 removed\n";
        assert_eq!(summary(&diff, Paint::PLAIN), text);
    }

    #[test]
    fn no_changes_are_no_lines() {
        let diff = CommandDiff { changes: WorkspaceChanges::default(), ..sample() };
        assert_eq!(summary(&diff, Paint::PLAIN), "");
    }
}
