//! `ostler cancel`: ends a run, or one command of it. Cancelling what has ended changes nothing and says how it ended.

use ostler_protocol::{
    Failure, Timestamp,
    runs::{Cancel, Terminal},
};

use crate::{
    connect::Connection,
    exit_codes,
    output::{self, Format, line},
};

/// Cancel a run, or one command of it
///
/// What a runner works on ends as soon as the runner has stopped it; what nobody works on ends at once. Without
/// `--command` the whole run ends, with everything unfinished in it.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler cancel run_0198…\n  ostler cancel run_0198… --command cmd_0198… --reason \"wrong branch\""
)]
pub struct Args {
    #[arg(value_name = "RUN", value_parser = clap::builder::NonEmptyStringValueParser::new(), help = "The run's id")]
    run: String,
    /// Cancel only this command; the run goes on
    #[arg(long, value_name = "CMD", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    command: Option<String>,
    /// Why, for the record
    #[arg(long)]
    reason: Option<String>,
    /// `json` prints the run or command as it stands now
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

pub async fn cancel(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let client = connection.client()?;
    let why = Cancel { reason: args.reason.clone() };
    let (json, text) = match &args.command {
        None => {
            let run = client.cancel_run(&args.run, &why).await?;
            let text = render(&run.run_id.to_string(), run.terminal.as_ref(), run.cancel_requested_at);
            (output::json(&run), text)
        }
        Some(command) => {
            // A command of another run is unknown here, rather than cancelled by mistake.
            client.get_command(&args.run, command).await?;
            let command = client.cancel_command(command, &why).await?;
            let text = render(&command.command_id.to_string(), command.terminal.as_ref(), command.cancel_requested_at);
            (output::json(&command), text)
        }
    };
    match args.output {
        Format::Json => output::data(&json),
        Format::Text => output::data(&text),
    }
    Ok(exit_codes::OK)
}

fn render(id: &str, terminal: Option<&Terminal>, asked_at: Option<Timestamp>) -> String {
    match terminal {
        Some(terminal) => match &terminal.message {
            Some(message) => format!("{id} {}: {}\n", terminal.status.as_str(), line(message, 500)),
            None => format!("{id} {}\n", terminal.status.as_str()),
        },
        None if asked_at.is_some() => format!("{id} cancelling: its runner has been told to stop\n"),
        None => format!("{id} not cancelled yet\n"),
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::runs::TerminalStatus;

    use super::*;

    #[test]
    fn it_says_what_became_of_it() {
        let at: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let terminal = |status, message: Option<&str>| Terminal {
            status,
            failure_kind: None,
            message: message.map(str::to_owned),
            source: "manager".into(),
            seq: 1,
            at,
        };
        let cancelled = terminal(TerminalStatus::Cancelled, Some("cancelled on request"));
        assert_eq!(render("run_1", Some(&cancelled), Some(at)), "run_1 cancelled: cancelled on request\n");
        assert_eq!(render("run_1", Some(&terminal(TerminalStatus::Completed, None)), None), "run_1 completed\n");
        assert_eq!(render("run_1", None, Some(at)), "run_1 cancelling: its runner has been told to stop\n");
    }
}
