//! `ostler trace`: the events of runs and sessions in order, one line each, and with `-f` as they happen. A permission request
//! takes more lines on a narrow terminal. With several targets each line has a prefix, coloured on a terminal.

use std::collections::VecDeque;

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::events::{EventType, EventView},
};
use regex::Regex;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    candidates,
    connection::Connection,
    errors, exit_codes,
    follow::{Followed, follow_all},
    targets::{Target, Within},
    terminal::{
        events::EventNarrator,
        output::{self, Format, Output, columns, shorten, wrap_command},
        paint::Paint,
        times::{Since, Times, now, parse_since},
    },
};

/// The longest text line if stdout is not a terminal.
const LINE_CHARS_MAX: usize = 240;
/// How many targets can be followed at once.
const TARGETS_MAX: usize = 32;
const LABEL_CHARS_MAX: usize = 16;
/// From this width on, the columns have more space.
const COLUMNS_WIDE: usize = 100;
/// The room that the later lines of a permission request have at least: that of its id.
const ID_CHARS: usize = 36;
/// A permission request begins on a line of its own if it would have less room behind the columns.
const REQUEST_CHARS_MIN: usize = 16;

/// Show the events of runs and sessions
///
/// With `-f` it continues across lost connections and server restarts, without gaps or duplicates: for a run until all its
/// commands have ended, for a session until Ctrl-C. Relative times count from the first event shown.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler trace\n  ostler trace 01a1dd6b\n  ostler trace -f review nightly --kind tool_call,error\n  \
    ostler trace -f my-session --since 10m --grep 'cargo (test|build)'\n  \
    ostler trace -o jsonl RUN | jq 'select(.type == \"tool_call\")'"
)]
pub(crate) struct TraceArgs {
    #[arg(value_name = "RUN|SESSION", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "What to show; with several, each line has a prefix [default: the latest run]")]
    targets: Vec<String>,
    /// Follow new events
    #[arg(short, long)]
    follow: bool,
    /// Begin after the event with this number
    #[arg(long, value_name = "SEQ", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,
    /// Only events since: a date or time in UTC (2026-11-01, 2026-11-01T08:00:00Z), or how long ago (10m, 2h)
    #[arg(long, value_name = "TIME|AGE", value_parser = parse_since)]
    since: Option<Since>,
    /// Only events whose text or payload matches this regular expression
    #[arg(long, value_name = "REGEX")]
    grep: Option<Regex>,
    /// Only events of these types, such as `tool_call,error`
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = event_type)]
    kind: Vec<EventType>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

fn event_type(text: &str) -> Result<EventType, String> {
    EventType::parse(text).ok_or_else(|| {
        let all: Vec<_> = EventType::ALL.iter().map(|event_type| event_type.as_str()).collect();
        format!("valid types: {}", all.join(", "))
    })
}

pub(crate) async fn trace(connection: &Connection, args: &TraceArgs) -> Result<u8, Failure> {
    if args.follow && args.output.format == Format::Json {
        return Err(errors::usage("`-f` never ends, so it cannot write a JSON document", "use `-o jsonl`"));
    }
    if args.targets.len() > TARGETS_MAX {
        return Err(errors::usage(format!("at most {TARGETS_MAX} can be shown at once"), "name fewer"));
    }
    let finder = args.within.finder(connection)?;
    let client = &finder.client;
    let mut found = vec![];
    for word in &args.targets {
        found.push(finder.any(word).await?);
    }
    if found.is_empty() {
        found.push(Target::Run(finder.latest().await?));
    }
    let mut sink = EventPrinter::new(args, &found);
    let read = pages(client, args, found, &mut sink).await?;
    if args.follow {
        live(client, read, &mut sink, connection.is_verbose()).await?
    }
    sink.finish();
    Ok(exit_codes::OK)
}

/// The events of one target that are not printed yet.
struct TargetPages {
    target: Target,
    waiting: VecDeque<EventView>,
    after: i64,
    has_more: bool,
}

impl TargetPages {
    /// Reads the next page if no event is waiting and there is more.
    async fn fill(&mut self, client: &Client) -> Result<(), Failure> {
        while self.waiting.is_empty() && self.has_more {
            let page = self.target.page(client, self.after).await?;
            self.has_more = page.has_more && page.next_after_seq > self.after;
            self.after = page.next_after_seq;
            self.waiting = page.events.into();
        }
        Ok(())
    }
}

/// Prints all existing events of all targets, oldest first. Returns the targets with the number of the last event read.
async fn pages(
    client: &Client,
    args: &TraceArgs,
    found: Vec<Target>,
    sink: &mut EventPrinter<'_>,
) -> Result<Vec<(Target, i64)>, Failure> {
    let start = |target| TargetPages { target, waiting: VecDeque::new(), after: args.after, has_more: true };
    let mut all: Vec<_> = found.into_iter().map(start).collect();
    loop {
        for pages in &mut all {
            pages.fill(client).await?;
        }
        let heads =
            all.iter().enumerate().filter_map(|(index, pages)| Some((pages.waiting.front()?.created_at, index)));
        let Some((_, index)) = heads.min() else {
            return Ok(all.into_iter().map(|pages| (pages.target, pages.after)).collect());
        };
        if let Some(event) = all[index].waiting.pop_front() {
            sink.show(index, &event);
        }
    }
}

/// Prints events as they happen.
async fn live(
    client: &Client,
    found: Vec<(Target, i64)>,
    sink: &mut EventPrinter<'_>,
    is_verbose: bool,
) -> Result<(), Failure> {
    let mut open = found.len();
    let mut followed = follow_all(client, found);
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    while open > 0 {
        tokio::select! {
            next = followed.recv() => match next {
                Some((index, Followed::Event(event))) => sink.show(index, &event),
                Some((index, change @ (Followed::Lost(_) | Followed::Regained(_)))) => {
                    if let Some(line) = change.connection_line(is_verbose) {
                        output::message(&format!("{}{line}\n", sink.prefix(index)));
                    }
                }
                Some((_, Followed::Over(over))) => {
                    over?;
                    open -= 1;
                }
                None => break,
            },
            _ = interrupts.recv() => break,
        }
    }
    Ok(())
}

/// Prints events as they are read, so that a long trace needs no memory unless a filter gets it as one document.
struct EventPrinter<'a> {
    args: &'a TraceArgs,
    /// One per target if there are several, all of one width.
    prefixes: Vec<String>,
    prefix_chars: usize,
    width: Option<usize>,
    not_before: Option<Timestamp>,
    narrator: EventNarrator,
    /// Whether each target is a session, whose events have numbers of their own.
    are_sessions: Vec<bool>,
    first: Option<Timestamp>,
    printed: usize,
    /// The events of a document that a filter gets as a whole.
    unfiltered: Vec<EventView>,
}

impl<'a> EventPrinter<'a> {
    fn new(args: &'a TraceArgs, found: &[Target]) -> Self {
        let (prefixes, prefix_chars) = prefixes(&args.targets, found, Paint::stdout());
        Self {
            args,
            prefixes,
            prefix_chars,
            width: output::width(),
            not_before: args.since.map(|since| since.time(now())),
            narrator: EventNarrator::default(),
            are_sessions: found.iter().map(|target| matches!(target, Target::Session(_))).collect(),
            first: None,
            printed: 0,
            unfiltered: vec![],
        }
    }

    fn prefix(&self, index: usize) -> &str {
        self.prefixes.get(index).map_or("", String::as_str)
    }

    fn wants(&self, event: &EventView, summary: &str) -> bool {
        let args = self.args;
        let recent = self.not_before.is_none_or(|time| event.created_at >= time);
        let kind = args.kind.is_empty() || args.kind.contains(&event.event_type);
        let text = |grep: &Regex| grep.is_match(summary) || grep.is_match(event.payload.as_str());
        recent && kind && args.grep.as_ref().is_none_or(text)
    }

    fn show(&mut self, index: usize, event: &EventView) {
        let summary = self.narrator.summary(event);
        if !self.wants(event, &summary) {
            return;
        }
        let first = *self.first.get_or_insert(event.created_at);
        match self.args.output.format {
            Format::Text => {
                let width = self.width.map(|width| width.saturating_sub(self.prefix_chars));
                let is_session = self.are_sessions.get(index).is_some_and(|is_session| *is_session);
                let seq = event.seq.filter(|_| !is_session).unwrap_or(event.session_seq);
                let text = render(seq, event, &summary, self.args.times, first, width);
                let prefix = self.prefix(index);
                let lines: String = text.lines().map(|line| format!("{prefix}{}\n", line.trim_end())).collect();
                output::data(&lines);
            }
            Format::Jsonl => self.args.output.record(event, output::data),
            Format::Json if self.args.output.is_filtered() => self.unfiltered.push(event.clone()),
            Format::Json => {
                let before = if self.printed == 0 { "[\n  " } else { ",\n  " };
                output::data(&format!("{before}{}", output::json_line(event).trim_end()));
            }
        }
        self.printed += 1;
    }

    fn finish(&self) {
        match (self.args.output.format, self.printed) {
            (Format::Json, _) if self.args.output.is_filtered() => self.args.output.document(&self.unfiltered),
            (Format::Json, 0) => output::data("[]\n"),
            (Format::Json, _) => output::data("\n]\n"),
            _ => {}
        }
        if self.printed == 0 {
            output::message("no events\n");
        }
    }
}

/// The words by which the targets were named, shortened and padded to one width; none for a single target.
fn prefixes(words: &[String], found: &[Target], paint: Paint) -> (Vec<String>, usize) {
    if found.len() < 2 {
        return (vec![], 0);
    }
    // The end of an id distinguishes it better than its beginning, which is a time.
    let label = |word: &String| match word.char_indices().rev().nth(LABEL_CHARS_MAX - 2) {
        Some((start, _)) if start > 0 => format!("…{}", &word[start..]),
        _ => word.clone(),
    };
    let labels: Vec<_> = words.iter().map(label).collect();
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let painted = |(index, label): (usize, &String)| paint.nth(index, &format!("{label:<width$} |")) + " ";
    (labels.iter().enumerate().map(painted).collect(), width + 3)
}

/// `   12    +1.234s  tool_call            shell completed: ls`.
fn render(seq: i64, event: &EventView, summary: &str, times: Times, first: Timestamp, width: Option<usize>) -> String {
    let at = times.since(event.created_at, first);
    // On a narrow terminal the columns give way to the text.
    let kind = event.event_type.as_str();
    let head = match width {
        Some(width) if width < COLUMNS_WIDE => format!("{seq:>4} {at:>8} {kind:<19} "),
        _ => format!("{seq:>5}  {at:>9}  {kind:<19}  "),
    };
    match event.event_type {
        EventType::PermissionRequest => whole_request(&head, summary, width),
        _ => shorten(format!("{head}{summary}").trim_end(), width.unwrap_or(LINE_CHARS_MAX)),
    }
}

/// A permission request behind its columns. It is wrapped and never shortened: a person decides about its command, and copies
/// its id.
fn whole_request(head: &str, summary: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return format!("{head}{summary}") };
    let taken = columns(head);
    let indent = taken.min(width.saturating_sub(ID_CHARS));
    match taken + REQUEST_CHARS_MIN <= width {
        true => format!("{head}{}", wrap_command(summary, taken, indent, Some(width))),
        false => {
            let text = wrap_command(summary, indent, indent, Some(width));
            format!("{}\n{:indent$}{text}", shorten(head.trim_end(), width), "")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::terminal::events::fixtures::event;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn args(words: &[&str]) -> TraceArgs {
        TestCli::parse_from(std::iter::once("trace").chain(words.iter().copied())).args
    }

    #[test]
    fn an_event_is_one_line() {
        let event = event(12, EventType::AssistantMessage, json!({"text": "hello\nthere"}));
        let first = "2030-01-02T03:04:05Z".parse().unwrap();
        let text = render(12, &event, "hello there", args(&["r"]).times, first, None);
        assert_eq!(text, "   12    +0.678s  assistant_message    hello there");
        let exact = render(12, &event, "hello there", args(&["r", "--time", "iso"]).times, first, None);
        assert!(exact.contains("2030-01-02T03:04:05.678Z"), "{exact}");
    }

    #[test]
    fn a_line_fits_the_terminal() {
        let event = event(12, EventType::AssistantMessage, json!({"text": "x".repeat(500)}));
        let (times, first, text) = (args(&["r"]).times, event.created_at, "x".repeat(500));
        for width in [60, 80, 120, 200] {
            assert_eq!(render(12, &event, &text, times, first, Some(width)).chars().count(), width);
        }
        assert_eq!(render(12, &event, &text, times, first, None).chars().count(), LINE_CHARS_MAX);
    }

    #[test]
    fn a_permission_request_is_wrapped_and_never_shortened() {
        let id = format!("prm_{:032x}", 1);
        let command = "cargo test --workspace --all-features -- --include-ignored";
        let event = event(9, EventType::PermissionRequest, json!({}));
        let (times, first, summary) =
            (args(&["r"]).times, event.created_at, format!("Test it? (command: {command}) {id}"));
        for width in [24, 40, 60, 80, 120, 300] {
            let text = render(9, &event, &summary, times, first, Some(width));
            assert!(text.lines().all(|line| columns(line.trim_end()) <= width), "{width}: {text}");
            let words = text.split_whitespace().collect::<Vec<_>>();
            assert!(words.join(" ").contains(command), "{width}: {text}");
            assert!(width < ID_CHARS || words.contains(&id.as_str()), "{width}: {text}");
        }
        let margin = " ".repeat(34);
        assert_eq!(
            render(9, &event, &summary, times, first, Some(80)),
            format!(
                "   9  +0.000s permission_request  Test it? (command: cargo test --workspace \n\
                 {margin}--all-features -- --include-ignored) \n{margin}{id}"
            )
        );
        let long = "x".repeat(500);
        assert!(render(9, &event, &long, times, first, None).ends_with(&long), "also in a pipe");
    }

    #[test]
    fn an_event_must_pass_every_filter() {
        let call = event(1, EventType::ToolCall, json!({"name": "shell", "command": "cargo test", "secret": "deep"}));
        let wants = |words: &[&str]| {
            let args = args(words);
            let summary = EventNarrator::default().summary(&call);
            EventPrinter::new(&args, &[]).wants(&call, &summary)
        };
        assert!(wants(&["r"]) && wants(&["r", "--kind", "tool_call,error"]) && wants(&["r", "--grep", "cargo (t|b)"]));
        assert!(wants(&["r", "--grep", "deep"]), "the whole payload is searched");
        assert!(!wants(&["r", "--kind", "error"]) && !wants(&["r", "--kind", "tool_call", "--grep", "npm"]));
        // The fixture's year is in the future, so that it is always recent.
        assert!(wants(&["r", "--since", "1m"]));
        assert!(TestCli::try_parse_from(["trace", "r", "--kind", "nonsense"]).is_err());
    }

    #[test]
    fn several_targets_have_prefixes_of_one_width() {
        let words = ["review".to_owned(), format!("run_{:032x}", 0xabcdef)];
        let found = words.clone().map(Target::Run);
        let (prefixes, width) = prefixes(&words, &found, Paint::PLAIN);
        assert_eq!(prefixes, ["review           | ", "…000000000abcdef | "]);
        assert_eq!(width, 19);
        assert_eq!(super::prefixes(&words[..1], &found[..1], Paint::PLAIN).0, Vec::<String>::new());
    }
}
