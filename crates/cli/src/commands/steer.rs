//! `ostler steer`: sends a message to the running turn, without ending it.

use clap::builder::NonEmptyStringValueParser;
use ostler_protocol::{
    Failure, RawJson,
    kernel::commands::{Command, CommandState, CommandType, CreateCommand},
};
use serde_json::json;

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
    targets::Within,
    terminal::{
        output::{self, Output, line, short_id},
        shell_words::flag,
    },
};

/// Send a message to the running turn
///
/// A submitted steer has not necessarily been read by the agent: `ostler result RUN --command CMD` shows its delivery.
/// Without a running turn it ends `blocked`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler steer RUN \"leave the tests alone\"")]
pub(crate) struct SteerArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its active or latest one")]
    run: String,
    #[arg(value_parser = NonEmptyStringValueParser::new(), help = "The message")]
    text: String,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn steer(connection: &Connection, args: &SteerArgs) -> Result<u8, Failure> {
    let steer = CreateCommand {
        command_type: CommandType::Steer,
        payload: RawJson::of(&json!({"text": args.text})),
        idempotency_key: None,
    };
    let finder = args.within.finder(connection)?;
    let run = finder.run(&args.run).await?;
    let command = finder.client.create_command(&run, &steer).await?;
    args.output.one(&command, || id_line(&command));
    let session = finder.client.get_run(&run).await.map(|run| run.run.session_id).unwrap_or_default();
    output::message(&render(&command, &session, &connection.invocation()));
    Ok(exit_code(command.state, &command))
}

/// The id of a steer that was sent. Empty if it was refused: there is nothing to look up.
fn id_line(command: &Command) -> String {
    let is_refused = command.state.is_terminal() && command.state != CommandState::Completed;
    if is_refused { String::new() } else { format!("{}\n", command.command_id) }
}

/// Zero for a steer that is pending or was delivered; else the code of its outcome.
fn exit_code(state: CommandState, command: &Command) -> u8 {
    if state.is_terminal() {
        exit_codes::of_outcome(command.terminal.as_ref().map(|t| t.status))
    } else {
        exit_codes::OK
    }
}

fn render(command: &Command, session: &str, invocation: &str) -> String {
    if let Some(terminal) = command.terminal.as_ref().filter(|_| command.state != CommandState::Completed) {
        let why = terminal.message.as_deref().unwrap_or("no reason was given");
        return format!(
            "steer {}: {}\nhint: start another turn: {invocation} run {} \"…\"\n",
            terminal.status.as_str(),
            line(why, 500),
            flag("--session", session)
        );
    }
    // Short enough for a line of 80 columns, so that it can be copied whole.
    let (run, id) = (short_id(&command.run_id), short_id(&command.command_id));
    format!("sent to the running turn; did the agent take it?\n  {invocation} result {run} --command {id}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn command(change: impl FnOnce(&mut Value)) -> Command {
        let mut body = json!({"commandId": format!("cmd_{:032x}", 2), "runId": format!("run_{:032x}", 1), "seq": 2,
            "type": "steer", "payload": {"text": "x"}, "payloadHash": "h", "idempotencyKey": null, "state": "pending",
            "targetCommandId": format!("cmd_{:032x}", 1), "cancelRequestedAt": null, "ackedAt": null,
            "attemptId": null, "terminal": null, "createdAt": "2030-01-01T00:00:00Z", "updatedAt": "2030-01-01T00:00:00Z"});
        change(&mut body);
        serde_json::from_str(&body.to_string()).unwrap()
    }

    #[test]
    fn a_steer_shows_how_to_check_its_delivery() {
        let steer = command(|_| ());
        let shown = render(&steer, "review", "ostler");
        let expected = "sent to the running turn; did the agent take it?\n  \
            ostler result run_0000000000000000 --command cmd_0000000000000000\n";
        assert_eq!(shown, expected);
        assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
        assert_eq!((exit_code(steer.state, &steer), id_line(&steer)), (0, format!("cmd_{:032x}\n", 2)));
    }

    #[test]
    fn a_steer_without_a_turn_is_blocked() {
        let steer = command(|body| {
            body["state"] = "blocked".into();
            body["terminal"] = json!({"status": "blocked", "failureKind": "state-conflict", "message": "no turn is active",
                "source": "manager", "seq": 3, "at": "2030-01-01T00:00:00Z"});
        });
        assert_eq!(
            render(&steer, "review", "ostler"),
            "steer blocked: no turn is active\nhint: start another turn: ostler run --session review \"…\"\n"
        );
        let copied = render(&steer, "x;id", "ostler");
        assert!(copied.ends_with("start another turn: ostler run --session 'x;id' \"…\"\n"), "{copied}");
        assert_eq!((exit_code(steer.state, &steer), id_line(&steer)), (12, String::new()));
    }
}
