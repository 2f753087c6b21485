//! `ostler backup`: writes everything that a server stores to one file, while the server runs.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, FailureKind};
use ostler_server::backup::{
    self, AgeRecipient, BackupOptions, BackupProgress, BackupReport, BackupStep, Lock, Zeroizing,
};
use secrecy::ExposeSecret;

use crate::{
    commands::serve::{StoreArgs, dialects},
    connection::Connection,
    errors, exit_codes,
    terminal::{
        output::{self, Output, count, harmless},
        progress_bar::{ProgressBar, size},
        secret_input,
    },
};

pub(super) const PASSPHRASE_BYTES_MAX: usize = 1_024;
/// Names of unreadable files that are printed.
const UNREADABLE_MAX: usize = 5;

/// Write everything that a server stores to one file
///
/// The server may keep running: start this on its machine, with its data directory, database and configuration. The file
/// contains every secret of the server; encrypt it with `--recipient` or `--passphrase`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backup /backup/ostler-$(date +%F).tar\n  \
    ostler backup --recipient age1… /backup/ostler.age\n  ostler backup --no-workspaces --passphrase-file words.txt ostler.age")]
pub(crate) struct BackupArgs {
    #[arg(value_name = "FILE", help = "The file to write; it must not exist")]
    file: PathBuf,
    /// Leave out the files that agents work on
    #[arg(long)]
    no_workspaces: bool,
    /// Encrypt it to this recipient of age; can be repeated
    #[arg(long, value_name = "RECIPIENT", value_parser = recipient)]
    recipient: Vec<AgeRecipient>,
    /// Encrypt it with a passphrase that you type at the terminal
    #[arg(long, conflicts_with = "recipient")]
    passphrase: bool,
    /// Encrypt it with the passphrase in the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipient", "passphrase"])]
    passphrase_file: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: Output,
}

fn recipient(text: &str) -> Result<AgeRecipient, String> {
    text.parse().map_err(|()| "not a valid recipient: copy the whole public key that `age-keygen` prints".into())
}

pub(crate) async fn backup(connection: &Connection, args: &BackupArgs) -> Result<u8, Failure> {
    let config = args.store.load(connection)?;
    let lock = match (&args.passphrase_file, args.passphrase, args.recipient.is_empty()) {
        (Some(file), ..) => Some(Lock::Passphrase(passphrase_in(file)?)),
        (None, true, _) => Some(Lock::Passphrase(ask_for_new()?)),
        (None, false, false) => Some(Lock::Recipients(args.recipient.clone())),
        (None, false, true) => None,
    };
    let options = BackupOptions { file: args.file.clone(), lock, with_workspaces: !args.no_workspaces };
    let source = config.location()?;
    let work = format!("backing up {source} to {}", args.file.display());
    let progress = Box::new(ProgressDisplay(ProgressBar::stderr(&work)));
    let report = backup::back_up(config, &dialects(), options, progress).await?;
    args.output.one(&report, || render(&report, &source));
    if args.output.is_text() {
        output::message(&notes(&report));
    }
    Ok(exit_codes::OK)
}

/// Shows the steps of a backup or a restore.
pub(super) struct ProgressDisplay(pub(super) ProgressBar);

impl BackupProgress for ProgressDisplay {
    fn progress(&mut self, step: BackupStep, done: u64, total: u64) {
        let label = match step {
            BackupStep::Files => "files",
            BackupStep::Store => "store",
            BackupStep::ChangedFiles => "changed files",
            BackupStep::Check => "checking",
            BackupStep::Restore => "restoring",
            BackupStep::Verify => "verifying",
        };
        self.0.show(label, done, total);
    }
}

fn render(report: &BackupReport, source: &str) -> String {
    let (contents, kind) = (&report.contents, if report.is_encrypted { ", encrypted" } else { "" });
    format!(
        "{}: {}{kind}; {}, {}, {}; from {}\n",
        harmless(&report.file),
        size(report.bytes),
        count(contents.rows_of("sessions") as i64, "session"),
        count(contents.rows_of("events") as i64, "event"),
        count(contents.files_total() as i64, "file"),
        harmless(source),
    )
}

/// Lists what is missing in the backup, and warns if it is not encrypted.
fn notes(report: &BackupReport) -> String {
    let mut notes = String::new();
    for what in &report.manifest.absent {
        notes.push_str(&format!("not in the backup: {}\n", harmless(what)));
    }
    let unreadable = &report.contents.unreadable;
    for file in unreadable.iter().take(UNREADABLE_MAX) {
        notes.push_str(&format!("not in the backup, because it cannot be read: {}\n", harmless(file)));
    }
    if unreadable.len() > UNREADABLE_MAX {
        notes.push_str(&format!("… and {} more files that cannot be read\n", unreadable.len() - UNREADABLE_MAX));
    }
    if !report.is_encrypted {
        notes.push_str("the file is not encrypted: its readers have all keys of the server\n");
    }
    notes
}

/// The first line of the file.
pub(super) fn passphrase_in(file: &Path) -> Result<Zeroizing<String>, Failure> {
    let unreadable =
        |why: &str| errors::usage(format!("cannot read {}: {why}", file.display()), "check the file's name");
    let text = std::fs::read_to_string(file).map(Zeroizing::new).map_err(|error| unreadable(&error.to_string()))?;
    let words = text.lines().next().unwrap_or_default();
    if words.is_empty() || words.len() > PASSPHRASE_BYTES_MAX {
        return Err(unreadable("its first line is not a passphrase"));
    }
    Ok(Zeroizing::new(words.to_owned()))
}

pub(super) fn ask(question: &str) -> Result<Zeroizing<String>, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(errors::usage("there is no terminal to ask for a passphrase", "use --passphrase-file FILE"));
    }
    let words = secret_input::ask(question, PASSPHRASE_BYTES_MAX)?;
    Ok(Zeroizing::new(words.expose_secret().to_owned()))
}

fn ask_for_new() -> Result<Zeroizing<String>, Failure> {
    let words = ask("passphrase (not echoed): ")?;
    if words.is_empty() {
        return Err(errors::usage("the passphrase is empty", "choose several words"));
    }
    if *words != *ask("the same again: ")? {
        return Err(errors::hinted(FailureKind::Cancelled, "the two differ; nothing was written", "try again"));
    }
    Ok(words)
}
