//! `ostler attach`: a session of the daemon, live in the terminal. Any number of terminals, editors and SDKs can be attached
//! to one session; each sees the prompts, replies and permission requests of all.

mod commands;
mod evictions;
mod live;
mod session_frames;
mod turns;
mod votes;

use std::io::IsTerminal;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::{Client, daemon::SessionClient};
use ostler_protocol::{
    Failure, FailureKind,
    daemon::sessions::{AttachedSession, OpenDaemonSession, SessionScope},
};
use rustix::fs::{FileType, fstat, stat};

use self::live::{InputMode, Live};
use crate::{
    candidates,
    connection::Connection,
    errors,
    targets::Within,
    terminal::{
        output::{self, Output, line},
        paint::Paint,
        shell_words::positional,
    },
};

/// Open a session live: follow it, prompt it, vote on its permission requests
///
/// At a terminal each line that you type is a prompt; `/help` lists what else you can type. Ctrl-C cancels the running
/// prompt, Ctrl-D detaches and ends nothing. If stdin is not a terminal, each of its lines is a prompt, one after the other,
/// and the exit code is that of the last turn. Continues across lost connections and server restarts.
///
/// Opens sessions that `ostler attach`, or another client of the daemon's routes, has made. `ostler trace -f` follows any other.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler attach\n  ostler attach my-session --all\n  ostler attach --new\n  \
    echo \"fix the failing test\" | ostler attach\n  ostler attach my-session --no-input -o jsonl")]
pub(crate) struct AttachArgs {
    #[arg(value_name = "SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The session [default: the one that all clients of the server's workspace share]")]
    session: Option<String>,
    /// Create a session instead of sharing one
    #[arg(long, conflicts_with = "session")]
    new: bool,
    /// Show this many earlier frames first [default: those of the turn that runs]
    #[arg(long, value_name = "N")]
    replay: Option<usize>,
    /// Show all earlier frames that the server still has
    #[arg(long, conflicts_with = "replay")]
    all: bool,
    /// Only follow: read nothing from stdin, and ask nothing
    #[arg(long)]
    no_input: bool,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

/// Which of the earlier frames are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Earlier {
    /// Those of the turn that runs.
    RunningTurn,
    Last(usize),
    All,
}

pub(crate) async fn attach(connection: &Connection, args: &AttachArgs) -> Result<u8, Failure> {
    let shows_earlier = args.all || args.replay.is_some();
    let may_create = args.session.is_none() && (args.new || !shows_earlier);
    if may_create && input_mode(args) == InputMode::Piped && is_stdin_empty() {
        // It would create a session, send nothing to it, and exit as if all were well.
        let hint = "pipe a prompt: echo \"…\" | ostler attach; or only follow: ostler attach --no-input";
        return Err(errors::usage("there is neither a terminal nor a prompt to send", hint));
    }
    let client = connection.client()?;
    let (attachment, last_event_id) = match &args.session {
        Some(word) => load(connection, args, word).await?,
        None => create(&client, args.new).await?,
    };
    let input = input_mode(args);
    let earlier = match args.replay {
        _ if args.all => Earlier::All,
        Some(frames) => Earlier::Last(frames),
        None => Earlier::RunningTurn,
    };
    output::message(&greeting(&attachment, input, Paint::stderr()));
    let again = format!("{} attach {}", connection.invocation(), positional(&attachment.session_id));
    let approve = format!("  answer:  {again}\n");
    let session = SessionClient::new(client, attachment.session_id, Some(attachment.client_id));
    Live::new(session, args.output.clone(), input, earlier, again, approve, connection.is_verbose())
        .run(last_event_id)
        .await
}

/// Whether stdin is known to have nothing to read: the null device, or an empty file.
fn is_stdin_empty() -> bool {
    let Ok(stdin) = fstat(std::io::stdin()) else { return false };
    match FileType::from_raw_mode(stdin.st_mode) {
        FileType::RegularFile => stdin.st_size == 0,
        FileType::CharacterDevice => stat("/dev/null").is_ok_and(|null| null.st_rdev == stdin.st_rdev),
        _ => false,
    }
}

fn input_mode(args: &AttachArgs) -> InputMode {
    if args.no_input {
        InputMode::None
    } else if !std::io::stdin().is_terminal() {
        InputMode::Piped
    } else if args.output.is_text() && std::io::stderr().is_terminal() {
        InputMode::Terminal
    } else {
        InputMode::Typed
    }
}

/// Creates a session, or attaches to the shared one. Returns it with the id of its newest frame.
async fn create(client: &Client, is_new: bool) -> Result<(AttachedSession, i64), Failure> {
    let session_scope = is_new.then(|| SessionScope::Thread.as_str().to_owned());
    let request = OpenDaemonSession { session_scope, ..OpenDaemonSession::default() };
    let opened = client.open_daemon_session(&request).await?;
    if !opened.attached {
        return Ok((opened, 0));
    }
    let session = SessionClient::new(client.clone(), opened.session_id.clone(), Some(opened.client_id.clone()));
    let last_event_id = session.resume().await?.last_event_id;
    Ok((opened, last_event_id))
}

/// Resumes the session that a word names. A session that was closed is opened again. Returns it with the id of its newest frame.
async fn load(connection: &Connection, args: &AttachArgs, word: &str) -> Result<(AttachedSession, i64), Failure> {
    let finder = args.within.finder(connection)?;
    let id = finder.session(word).await?.id;
    let resumed = finder.client.resume_daemon_session(&id).await;
    resumed.map(|resumed| (resumed.attached, resumed.last_event_id)).map_err(|failure| match failure.kind {
        FailureKind::NotFound => {
            let hint = format!(
                "`attach` opens sessions that it, or another client of the daemon's routes, has made, and not those of `ostler run`; \
                 `ostler trace -f {}` follows any session",
                positional(&id)
            );
            errors::with_hint(failure, hint)
        }
        _ => failure,
    })
}

fn greeting(attachment: &AttachedSession, input: InputMode, paint: Paint) -> String {
    let verb = if attachment.attached { "attached to" } else { "opened" };
    let place = match attachment.workspace_cwd.as_str() {
        "" => String::new(),
        cwd => format!(" in {}", line(cwd, 400)),
    };
    let help = if input == InputMode::Terminal { "; /help lists what you can type" } else { "" };
    let text = format!("{verb} session {}{place}{help}", line(&attachment.session_id, 200));
    format!("{}\n", paint.dim(&text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_greeting_names_the_session_and_its_directory() {
        let mut body = json!({"sessionId": "ses_1", "workspaceCwd": "/srv/app", "attached": false, "clientId": "client_1",
            "createdAt": "2030-01-01T00:00:00Z"});
        let created: AttachedSession = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(greeting(&created, InputMode::None, Paint::PLAIN), "opened session ses_1 in /srv/app\n");
        body["attached"] = true.into();
        let attached: AttachedSession = serde_json::from_value(body).unwrap();
        assert_eq!(
            greeting(&attached, InputMode::Terminal, Paint::PLAIN),
            "attached to session ses_1 in /srv/app; /help lists what you can type\n"
        );
    }
}
