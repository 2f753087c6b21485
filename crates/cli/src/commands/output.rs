//! `ostler output`: the agent's messages and its tools' output in a session or a run.

use clap::builder::NonEmptyStringValueParser;
use ostler_protocol::{
    Failure,
    kernel::{
        events::{EventType, EventView},
        sessions::SessionEventsQuery,
    },
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    candidates,
    connection::Connection,
    exit_codes,
    targets::{Target, Within},
    terminal::output::{self, Format, Output, harmless},
};

/// Show the agent's messages and its tools' output in a session or a run
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler output\n  ostler output my-session\n  ostler output RUN > reply.md\n  \
    ostler output my-session -o jsonl | jq -r .payload.text")]
pub(crate) struct OutputArgs {
    #[arg(value_name = "SESSION|RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "What to show [default: the latest run]")]
    target: Option<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn output(connection: &Connection, args: &OutputArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let target = match &args.target {
        Some(word) => finder.any(word).await?,
        None => Target::Run(finder.latest().await?),
    };
    let (session, run_id) = match target {
        Target::Session(key) => (key, None),
        Target::Run(id) => (finder.session(&id).await?, Some(id)),
    };
    let (limit, tenant_id) = (Some(PAGE_ITEMS_MAX), session.tenant);
    let mut query = SessionEventsQuery { run_id, limit, tenant_id, ..SessionEventsQuery::default() };
    let (mut all, mut removed) = (vec![], 0);
    loop {
        let page = finder.client.session_output(&session.id, &query).await?;
        removed += page.events.iter().filter(|event| event.payload.is_null()).count();
        match args.output.format {
            // Only a JSON document must be complete before it is written.
            Format::Json => all.extend(page.events),
            Format::Jsonl => page.events.iter().for_each(|event| args.output.record(event, output::data)),
            Format::Text => page.events.iter().for_each(|event| output::data(&render(event))),
        }
        if !page.has_more || page.next_after_seq <= query.after_seq {
            break;
        }
        query.after_seq = page.next_after_seq;
    }
    if args.output.format == Format::Json {
        args.output.document(&all);
    }
    if removed > 0 {
        output::message(&removed_text(removed as i64));
    }
    Ok(exit_codes::OK)
}

/// A message, because removed output would look like none.
fn removed_text(removed: i64) -> String {
    let verb = if removed == 1 { "was" } else { "were" };
    format!("{} {verb} removed by retention\n", output::count(removed, "text"))
}

/// A message unchanged; output of a tool with a prefix on each line.
fn render(event: &EventView) -> String {
    let payload = event.payload.to_value();
    let text = payload.get("text").and_then(|text| text.as_str()).unwrap_or_default();
    let text = harmless(text).trim_end().to_owned();
    if text.is_empty() {
        return String::new();
    }
    match event.event_type {
        EventType::CommandOutput => text.lines().map(|line| format!("  | {line}\n")).collect(),
        _ => format!("{text}\n"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::events::fixtures::event;

    #[test]
    fn removed_output_does_not_look_like_none() {
        assert_eq!(removed_text(1), "1 text was removed by retention\n");
        assert_eq!(removed_text(2), "2 texts were removed by retention\n");
        assert!(event(1, EventType::AssistantMessage, serde_json::Value::Null).payload.is_null());
    }

    #[test]
    fn output_of_a_tool_is_prefixed_and_a_message_is_not() {
        assert_eq!(render(&event(1, EventType::AssistantMessage, json!({"text": "hello\n"}))), "hello\n");
        assert_eq!(render(&event(1, EventType::CommandOutput, json!({"text": "a\nb\x1b[2J\n"}))), "  | a\n  | b[2J\n");
        assert_eq!(render(&event(1, EventType::AssistantMessage, json!({}))), "");
    }
}
