//! `ostler restore`: makes a data directory and a store from a backup, or only checks the backup.

use std::path::{Path, PathBuf};

use ostler_protocol::Failure;
use ostler_server::backup::{
    self, AgeIdentity, BackupContents, BackupManifest, CheckReport, RestoreOptions, RestoreReport, Unlock, Zeroizing,
};
use serde_json::json;

use crate::{
    commands::{
        backup::{ProgressDisplay, ask, passphrase_in},
        serve::{StoreArgs, dialects},
        verify,
    },
    connection::Connection,
    errors, exit_codes,
    terminal::{
        output::{self, Output, count, harmless},
        paint::Paint,
        progress_bar::{ProgressBar, size},
        shell_words::quoted,
    },
};

/// Restore a server from a backup
///
/// The data directory must be empty or absent, and on Postgres the database must have no tables. Everything in the backup is
/// checked before anything is written, and the log's hash chains afterwards. The exit code is 1 if the backup is
/// damaged or a session is inconsistent.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler restore /backup/ostler.tar --data-dir ./restored\n  \
    ostler restore --identity key.txt ostler.age\n  ostler restore --check ostler.tar")]
pub(crate) struct RestoreArgs {
    #[arg(value_name = "FILE", help = "The backup")]
    file: PathBuf,
    /// Decrypt it with the identities in this file, as `age-keygen` writes it
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Decrypt it with the passphrase in the first line of this file [default: typed at the terminal]
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,
    /// Only check the backup; write nothing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn restore(connection: &Connection, args: &RestoreArgs) -> Result<u8, Failure> {
    let config = args.store.load(connection)?;
    if let Err(error) = std::fs::File::open(&args.file) {
        let message = format!("cannot read {}: {error}", args.file.display());
        return Err(errors::usage(message, "check the file's name"));
    }
    let unlock = match (&args.identity, &args.passphrase_file) {
        (Some(file), _) => Some(Unlock::Identities(identities_in(file)?)),
        (None, Some(file)) => Some(Unlock::Passphrase(passphrase_in(file)?)),
        (None, None) if backup::is_encrypted(&args.file)? => {
            Some(Unlock::Passphrase(ask("passphrase of the backup (not echoed): ")?))
        }
        (None, None) => None,
    };
    let options = RestoreOptions { file: args.file.clone(), unlock };
    let work = match args.check {
        true => format!("checking {}", args.file.display()),
        false => format!("restoring {} to {}", args.file.display(), config.data_dir()?.display()),
    };
    let progress = Box::new(ProgressDisplay(ProgressBar::stderr(&work)));
    if args.check {
        let report = backup::check(options, progress).await?;
        args.output.one(&report, || format!("{} {}\n", Paint::stdout().green("ok"), described(&report)));
        return Ok(exit_codes::OK);
    }
    let report = backup::restore(config, &dialects(), options, progress).await?;
    args.output.one(&as_json(&report), || output::folded(&render(&report, Paint::stdout()), output::width()));
    if args.output.is_text() {
        output::message(&notes(&report));
    }
    Ok(if report.verified.broken.is_empty() { exit_codes::OK } else { exit_codes::BROKEN })
}

/// The identities of a file, one in each line that is not a comment.
fn identities_in(file: &Path) -> Result<Vec<AgeIdentity>, Failure> {
    let unreadable = |why: String| {
        errors::usage(format!("cannot read {}: {why}", file.display()), "name the file that `age-keygen` wrote")
    };
    let text = std::fs::read_to_string(file).map(Zeroizing::new).map_err(|error| unreadable(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let identities = lines.map(|line| line.parse().map_err(|()| unreadable("a line is not an identity".into())));
    let identities: Vec<_> = identities.collect::<Result<_, _>>()?;
    if identities.is_empty() { Err(unreadable("it has no identity".into())) } else { Ok(identities) }
}

fn counts(contents: &BackupContents) -> String {
    format!(
        "{}, {}, {} ({})",
        count(contents.rows_of("sessions") as i64, "session"),
        count(contents.rows_of("events") as i64, "event"),
        count(contents.files_total() as i64, "file"),
        size(contents.file_bytes),
    )
}

fn described(report: &CheckReport) -> String {
    let BackupManifest { engine, created_at, ostler, .. } = &report.manifest;
    let counts = counts(&report.contents);
    format!("{counts}; backup of {created_at} from {}, ostler {}", harmless(engine), harmless(ostler))
}

fn render(report: &RestoreReport, paint: Paint) -> String {
    let restored = format!("restored to {}: {}\n", report.data_dir.display(), described(&report.check));
    restored + &verify::render(&report.verified, paint)
}

fn notes(report: &RestoreReport) -> String {
    let mut notes = String::new();
    for what in &report.check.manifest.absent {
        notes.push_str(&format!("not in the backup: {}\n", harmless(what)));
    }
    for name in &report.sealed_secrets {
        let name = harmless(name);
        notes.push_str(&format!("the configured key does not open the secret {name}: it was sealed with another\n"));
    }
    let store = if report.is_postgres { " --database-url URL" } else { "" };
    let data_dir = quoted(&report.data_dir.to_string_lossy());
    notes.push_str(&format!("start it with the same settings: ostler serve --data-dir {data_dir}{store}\n"));
    notes
}

fn as_json(report: &RestoreReport) -> serde_json::Value {
    json!({"dataDir": report.data_dir.display().to_string(), "backup": report.check, "verified": verify::as_json(&report.verified),
        "sealedSecrets": report.sealed_secrets})
}
