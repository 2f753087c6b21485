//! `ostler tools`: the tools that the server offers to agents.

use clap::Subcommand;
use ostler_protocol::{
    Failure, Rule,
    tools::wire::{CallStatus, CalledTool, OfferedTool, TryTool},
};

use crate::{
    commands::list::Listing,
    connection::Connection,
    exit_codes,
    terminal::{
        list_output::ListOutput,
        output::{self, Output, harmless, line},
        table::Column,
        times::Times,
    },
};

/// List the tools that agents can call, and try one
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tools list\n  ostler tools call time_now")]
pub(crate) struct ToolsArgs {
    #[command(subcommand)]
    verb: ToolsVerb,
}

#[derive(Subcommand, Debug)]
enum ToolsVerb {
    List(ListToolsArgs),
    Call(CallToolArgs),
}

/// List the tools, with what each may do
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tools list\n  \
    ostler tools list -o json | jq '.[] | {name, parameters}'")]
struct ListToolsArgs {
    #[command(flatten)]
    output: ListOutput,
}

/// Call a tool outside of any run, to try it
///
/// Only the operator may do this. The call is executed without asking for permission, and is in no run's log.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tools call time_now\n  \
    ostler tools call time_now --arguments '{\"timezone\": \"Europe/Berlin\"}'")]
struct CallToolArgs {
    #[arg(help = "The tool's name, as `ostler tools list` shows it")]
    name: String,
    /// The arguments, as a JSON object
    #[arg(short, long, value_name = "JSON", default_value = "{}")]
    arguments: String,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn tools(connection: &Connection, args: &ToolsArgs) -> Result<u8, Failure> {
    match &args.verb {
        ToolsVerb::List(args) => {
            let all = connection.client()?.tools().await?.tools;
            TOOLS.print(&all, false, Times::default(), &args.output)
        }
        ToolsVerb::Call(args) => call(connection, args).await,
    }
}

async fn call(connection: &Connection, args: &CallToolArgs) -> Result<u8, Failure> {
    let arguments = serde_json::from_str(&args.arguments)
        .map_err(|error| Failure::invalid(Rule::JsonMalformed, format!("--arguments is not a JSON object: {error}")))?;
    let called = connection.client()?.try_tool(&args.name, &TryTool { arguments }).await?;
    if let Some(rule) = broken_rule(called.status) {
        return Err(Failure::rule(rule, harmless(&called.content)));
    }
    args.output.one(&called, || render(&called));
    Ok(exit_codes::OK)
}

/// The rule that a call without a result breaks.
fn broken_rule(status: CallStatus) -> Option<Rule> {
    match status {
        CallStatus::Completed => None,
        CallStatus::OutcomeUnknown | CallStatus::Running => Some(Rule::ToolOutcomeUnknown),
        CallStatus::Failed | CallStatus::Declined => Some(Rule::ToolFailed),
    }
}

fn render(called: &CalledTool) -> String {
    if called.truncated {
        output::message("the result is longer\n");
    }
    format!("{}\n", harmless(&called.content))
}

/// Where a tool comes from, for people: which part of the server offers one of its own tools is of no interest.
fn source_words(source: &str) -> String {
    match source.split_once(':') {
        Some(("mcp", server)) => format!("MCP server {}", line(server, 64)),
        Some(("dialect", _)) => "built-in".to_owned(),
        _ => line(source, 80),
    }
}

const TOOLS: Listing<OfferedTool> = Listing {
    nothing: "the server offers no tools\n",
    columns: &[
        Column::whole("NAME"),
        Column::spare(4, "SOURCE"),
        Column::whole("CHANGES"),
        Column::spare(2, "NETWORK"),
        Column::spare(1, "SCOPE"),
        Column::wrapped(3, "DESCRIPTION"),
    ],
    row: |tool, _, _| {
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        vec![
            line(&tool.name, 64),
            source_words(&tool.source),
            yes(tool.changes),
            yes(tool.uses_network),
            tool.scope.as_deref().map_or_else(|| "-".to_owned(), |scope| line(scope, 64)),
            line(&tool.description, 200),
        ]
    },
};

#[cfg(test)]
mod tests {
    use ostler_protocol::{
        Timestamp,
        tools::{ToolDefinition, ToolOrigin},
    };

    use super::*;

    #[test]
    fn a_tool_shows_where_it_comes_from_and_what_it_may_do() {
        let origin = ToolOrigin::Mcp("notes".into());
        let tool = ToolDefinition::new(origin, "mcp__notes__add", "Adds a note.", Default::default()).unwrap();
        let all = [OfferedTool::from(&tool.scope("mcp:notes"))];
        let text = TOOLS.render(&all, Times::default(), Timestamp::UNIX_EPOCH, None);
        assert!(
            text.contains("mcp__notes__add") && text.contains("MCP server notes") && text.contains("Adds a note."),
            "{text}"
        );
    }

    #[test]
    fn a_call_of_unknown_outcome_exits_with_a_code_of_its_own() {
        let code = |status| broken_rule(status).map(|rule| exit_codes::of_failure(&Failure::rule(rule, "x")));
        assert_eq!(code(CallStatus::Completed), None);
        assert_eq!(code(CallStatus::Failed), Some(exit_codes::FAILED));
        assert_eq!(code(CallStatus::OutcomeUnknown), Some(exit_codes::UNREACHABLE));
    }

    #[test]
    fn the_table_fits_a_narrow_terminal() {
        let description = "Adds an event to the calendar, with its time zone, its place and the people who come.";
        let tool = |origin, name: &str| ToolDefinition::new(origin, name, description, Default::default()).unwrap();
        let all = [
            OfferedTool::from(&tool(ToolOrigin::Dialect("run_input"), "calendar_write")),
            OfferedTool::from(&tool(ToolOrigin::Mcp("notes".into()), "mcp__notes__add_with_a_long_name")),
        ];
        for width in [60, 80] {
            let text = TOOLS.render(&all, Times::default(), Timestamp::UNIX_EPOCH, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.contains("calendar_write") && text.contains("calendar,"), "{text}");
            assert!(!text.contains("dialect"), "{text}");
        }
    }
}
