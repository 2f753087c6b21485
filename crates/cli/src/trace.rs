//! `ostler trace`: a run's events in order, one line each, and with `-f` as they happen.

use clap::ValueEnum;
use ostler_client::Client;
use ostler_protocol::{Failure, cursors::EventsQuery, events::EventView, limits::PAGE_ITEMS_MAX};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connect::Connection,
    errors, events, exit_codes,
    follow::{Followed, follow},
    output::{self, ListFormat, shorten},
};

/// The longest text line where there is no terminal to fit.
const LINE_CHARS_MAX: usize = 240;

/// Show what happened in a run, event by event
///
/// With `-f` it goes on until the run ends or Ctrl-C, through lost connections. Times are UTC.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler trace run_0198…\n  ostler trace -f --after 40 run_0198…\n  \
    ostler trace -o jsonl run_0198… | jq 'select(.type == \"tool_call\")'")]
pub struct Args {
    #[arg(value_name = "RUN", value_parser = clap::builder::NonEmptyStringValueParser::new(), help = "The run's id")]
    run: String,
    /// Go on with what happens next
    #[arg(short, long)]
    follow: bool,
    /// Begin behind the event with this number
    #[arg(long, value_name = "SEQ", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,
    /// How to show times
    #[arg(long, value_enum, default_value = "clock")]
    time: TimeFormat,
    /// `jsonl` prints one event per line, whole
    #[arg(short, long, value_enum, default_value = "text")]
    output: ListFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeFormat {
    /// The time of day.
    Clock,
    /// Date and time.
    Iso,
}

pub async fn trace(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    if args.follow && args.output == ListFormat::Json {
        return Err(errors::usage("`-f` has no end to close a JSON array with", "use `-o jsonl`"));
    }
    let client = connection.client()?;
    let mut sink = Sink { args, width: output::width(), shown: 0 };
    if args.follow {
        live(client, args, &mut sink).await?
    } else {
        pages(&client, args, &mut sink).await?
    }
    sink.finish();
    Ok(exit_codes::OK)
}

async fn pages(client: &Client, args: &Args, sink: &mut Sink<'_>) -> Result<(), Failure> {
    let mut query = EventsQuery { after_seq: args.after, limit: Some(PAGE_ITEMS_MAX), ..EventsQuery::default() };
    loop {
        let page = client.run_events(&args.run, &query).await?;
        page.events.iter().for_each(|event| sink.show(event));
        if !page.has_more || page.next_after_seq <= query.after_seq {
            return Ok(());
        }
        query.after_seq = page.next_after_seq;
    }
}

async fn live(client: Client, args: &Args, sink: &mut Sink<'_>) -> Result<(), Failure> {
    let mut followed = follow(client, args.run.clone(), args.after);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    loop {
        tokio::select! {
            next = followed.recv() => match next {
                Some(Followed::Event(event)) => sink.show(&event),
                Some(Followed::Lost(line)) => output::words(&format!("{line}\n")),
                Some(Followed::Over(over)) => return over,
                None => return Ok(()),
            },
            _ = interrupts.recv() => return Ok(()),
        }
    }
}

/// Where events go as they are read, so that a long trace needs no memory.
struct Sink<'a> {
    args: &'a Args,
    width: Option<usize>,
    shown: usize,
}

impl Sink<'_> {
    fn show(&mut self, event: &EventView) {
        let text = match self.args.output {
            ListFormat::Text => format!("{}\n", render(event, self.args.time, self.width)),
            ListFormat::Jsonl => output::json_line(event),
            ListFormat::Json => {
                let before = if self.shown == 0 { "[\n  " } else { ",\n  " };
                format!("{before}{}", output::json_line(event).trim_end())
            }
        };
        output::data(&text);
        self.shown += 1;
    }

    fn finish(&self) {
        match (self.args.output, self.shown) {
            (ListFormat::Json, 0) => output::data("[]\n"),
            (ListFormat::Json, _) => output::data("\n]\n"),
            (_, 0) => {}
            _ => return,
        }
        if self.shown == 0 {
            output::words("no events\n");
        }
    }
}

/// `   12  03:04:05.678  tool_call            shell completed: ls`.
pub fn render(event: &EventView, time: TimeFormat, width: Option<usize>) -> String {
    let at = match time {
        TimeFormat::Clock => events::time_of_day(event.created_at),
        TimeFormat::Iso => event.created_at.to_string(),
    };
    let seq = event.seq.unwrap_or(event.session_seq);
    let text = format!("{seq:>5}  {at}  {:<19}  {}", event.event_type.as_str(), events::summary(event));
    shorten(text.trim_end(), width.unwrap_or(LINE_CHARS_MAX))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::events::EventType;
    use serde_json::json;

    use super::*;
    use crate::events::fixtures::event;

    #[test]
    fn an_event_is_one_line() {
        let event = event(12, EventType::AssistantMessage, json!({"text": "hello\nthere"}));
        let text = render(&event, TimeFormat::Clock, None);
        assert_eq!(text, "   12  03:04:05.678  assistant_message    hello there");
        assert!(render(&event, TimeFormat::Iso, None).contains("2030-01-02T03:04:05.678Z"));
    }

    #[test]
    fn a_line_fits_the_terminal() {
        let event = event(12, EventType::AssistantMessage, json!({"text": "x".repeat(500)}));
        assert_eq!(render(&event, TimeFormat::Clock, Some(80)).chars().count(), 80);
        assert_eq!(render(&event, TimeFormat::Clock, None).chars().count(), LINE_CHARS_MAX);
    }
}
