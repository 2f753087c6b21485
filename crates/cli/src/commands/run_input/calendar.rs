//! `ostler calendar`: the caller's calendar.

use clap::Subcommand;
use jiff::ToSpan;
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    limits::PAGE_ITEMS_MAX,
    run_input::calendar::{
        CalendarEvent, CalendarOccurrence, CreateCalendarEvent, ListCalendarEvents, ListOccurrences,
        UpdateCalendarEvent,
    },
    run_input::local_times::LocalTimeKind,
};

use crate::{
    commands::list::{Listing, all_pages},
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        list_output::ListOutput,
        output::{self, Output, line},
        table::Column,
        times::{Times, now},
    },
};

const NAMED: &str = "An event: its id, or the beginning of it";
const LIST: &str = "ostler calendar list";

/// Keep your calendar, which agents can write to as well
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler calendar add Dentist 2030-03-17T09:00 --timezone Europe/Berlin\n  ostler calendar list --days 30\n  \
    ostler calendar export > calendar.ics")]
pub(crate) struct CalendarArgs {
    #[command(subcommand)]
    verb: CalendarVerb,
}

#[derive(Subcommand, Debug)]
enum CalendarVerb {
    Add(AddEventArgs),
    List(ListEventsArgs),
    Show(ShowEventArgs),
    Update(UpdateEventArgs),
    Delete(DeleteEventArgs),
    Export(ExportCalendarArgs),
}

/// Add an event
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler calendar add Dentist 2030-03-17T09:00 --timezone Europe/Berlin\n  \
    ostler calendar add Standup 2030-03-18T09:00 --until 2030-03-18T09:15 \\\n      --timezone UTC --repeat 'FREQ=WEEKLY;BYDAY=MO'")]
struct AddEventArgs {
    title: String,
    /// The local time of its start: 2030-03-17T09:00; with --all-day a date
    start: String,
    /// The local time of its end [default: an hour, or a day, after the start]
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// The time zone of the event, by its name in the time zone database: Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    timezone: String,
    /// It lasts whole days
    #[arg(long)]
    all_day: bool,
    /// A recurrence rule of RFC 5545: FREQ=WEEKLY;BYDAY=MO
    #[arg(long, value_name = "RULE")]
    repeat: Option<String>,
    #[arg(long, value_name = "PLACE")]
    location: Option<String>,
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// List what takes place in the next days
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler calendar list\n  ostler calendar list --from 2030-03-01T00:00:00Z --days 31"
)]
struct ListEventsArgs {
    /// The beginning of the window [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<Timestamp>,
    /// The length of the window
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=400))]
    days: u32,
    #[command(flatten)]
    output: ListOutput,
}

/// Show an event
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler calendar show cal_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d")]
struct ShowEventArgs {
    #[arg(help = NAMED)]
    event: String,
    #[command(flatten)]
    output: Output,
}

/// Change an event; what is left out stays as it is
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler calendar update cal_0197c1d2 --start 2030-03-17T10:00")]
struct UpdateEventArgs {
    #[arg(help = NAMED)]
    event: String,
    #[arg(long)]
    title: Option<String>,
    /// A new local start; the event keeps its length unless --until is given
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// A recurrence rule of RFC 5545; empty for none
    #[arg(long, value_name = "RULE")]
    repeat: Option<String>,
    #[arg(long, value_name = "PLACE")]
    location: Option<String>,
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Delete an event, with all of its occurrences
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler calendar delete cal_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct DeleteEventArgs {
    #[arg(help = NAMED)]
    event: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Print the calendar as iCalendar text, for other programs to import
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler calendar export > calendar.ics")]
struct ExportCalendarArgs {}

pub(crate) async fn calendar(connection: &Connection, args: &CalendarArgs) -> Result<u8, Failure> {
    match &args.verb {
        CalendarVerb::Add(args) => add(connection, args).await,
        CalendarVerb::List(args) => list(connection, args).await,
        CalendarVerb::Show(args) => show(connection, args).await,
        CalendarVerb::Update(args) => update(connection, args).await,
        CalendarVerb::Delete(args) => delete(connection, args).await,
        CalendarVerb::Export(_) => export(connection).await,
    }
}

async fn add(connection: &Connection, args: &AddEventArgs) -> Result<u8, Failure> {
    let request = CreateCalendarEvent {
        title: args.title.clone(),
        description: args.description.clone(),
        location: args.location.clone(),
        starts_at: args.start.clone(),
        ends_at: args.until.clone(),
        all_day: args.all_day,
        event_timezone: args.timezone.clone(),
        recurrence: args.repeat.clone(),
    };
    let event = connection.client()?.create_calendar_event(&request).await?;
    args.output.one(&event, || format!("{}\n", event.id));
    warn_about_clocks(&event);
    Ok(exit_codes::OK)
}

/// Notes a start that the clocks skip or show twice.
fn warn_about_clocks(event: &CalendarEvent) {
    let first = event.zone().and_then(|zone| event.first(&zone));
    match first.map(|(start, _)| start.kind) {
        Ok(LocalTimeKind::Missing) => output::message("the clocks skip this local time; the event starts later\n"),
        Ok(LocalTimeKind::Ambiguous) => {
            output::message("the clocks show this local time twice; the event starts at the first\n");
        }
        Ok(LocalTimeKind::Exact) | Err(_) => {}
    }
}

async fn list(connection: &Connection, args: &ListEventsArgs) -> Result<u8, Failure> {
    let from = args.from.unwrap_or_else(now);
    let to = from.checked_add((i64::from(args.days) * 24).hours()).unwrap_or(Timestamp::MAX);
    let query = ListOccurrences { from: Some(from.to_string()), to: Some(to.to_string()) };
    let found = connection.client()?.list_occurrences(&query).await?;
    OCCURRENCES.print(&found.occurrences, found.has_more, Times::default(), &args.output)
}

/// An event by its id or the beginning of it.
async fn find(client: &Client, word: &str) -> Result<CalendarEvent, Failure> {
    let all = all_pages(async |cursor| {
        let page = client.list_calendar_events(&ListCalendarEvents { limit: Some(PAGE_ITEMS_MAX), cursor }).await?;
        Ok((page.events, page.next_cursor))
    });
    let all = all.await?;
    let fits = |event: &&CalendarEvent| event.id.to_string().starts_with(word);
    let found = all.iter().filter(fits).map(|event| (event.id.to_string(), line(&event.title, 40)));
    let id = targets::one(word, "event id", found.collect())?;
    let found = id.and_then(|id| all.into_iter().find(|event| event.id.to_string() == id));
    found.ok_or_else(|| errors::listed_by(targets::unknown("event", word), LIST))
}

async fn show(connection: &Connection, args: &ShowEventArgs) -> Result<u8, Failure> {
    let event = find(&connection.client()?, &args.event).await?;
    args.output.one(&event, || describe(&event));
    Ok(exit_codes::OK)
}

async fn update(connection: &Connection, args: &UpdateEventArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let id = find(&client, &args.event).await?.id.to_string();
    let change = UpdateCalendarEvent {
        title: args.title.clone(),
        description: args.description.clone(),
        location: args.location.clone(),
        starts_at: args.start.clone(),
        ends_at: args.until.clone(),
        all_day: None,
        event_timezone: args.timezone.clone(),
        recurrence: args.repeat.clone(),
    };
    let event = client.update_calendar_event(&id, &change).await?;
    args.output.one(&event, || describe(&event));
    warn_about_clocks(&event);
    Ok(exit_codes::OK)
}

async fn delete(connection: &Connection, args: &DeleteEventArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let event = find(&client, &args.event).await?;
    if !args.confirm.ask(&format!("delete the event {}?", line(&event.title, 80)))? {
        return Ok(exit_codes::OK);
    }
    client.delete_calendar_event(&event.id.to_string()).await?;
    args.output.one(&event, || format!("{} deleted\n", line(&event.title, 200)));
    Ok(exit_codes::OK)
}

async fn export(connection: &Connection) -> Result<u8, Failure> {
    output::bytes(&connection.client()?.export_calendar().await?);
    Ok(exit_codes::OK)
}

fn describe(event: &CalendarEvent) -> String {
    let mut text = format!(
        "{}\n{}\n{} to {} ({})\n",
        line(&event.title, 200),
        event.id,
        event.starts_at,
        event.ends_at,
        event.event_timezone
    );
    for (name, value) in [("repeats", &event.recurrence), ("at", &event.location), ("description", &event.description)]
    {
        if let Some(value) = value {
            text += &format!("{name}: {}\n", line(value, 1_000));
        }
    }
    text
}

const OCCURRENCES: Listing<CalendarOccurrence> = Listing {
    nothing: "nothing takes place in this time; add an event: ostler calendar add TITLE START --timezone ZONE\n",
    columns: &[
        Column::whole("START"),
        Column::text(3, "EVENT"),
        Column::spare(1, "TIME ZONE"),
        Column::text(2, "PLACE"),
        Column::whole("ID"),
    ],
    row: |occurrence, _, _| {
        vec![
            occurrence.local.clone(),
            line(&occurrence.title, 200),
            occurrence.event_timezone.clone(),
            line(occurrence.location.as_deref().unwrap_or("-"), 200),
            occurrence.event_id.to_string(),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_described_by_its_local_times() {
        let event: CalendarEvent = serde_json::from_value(json!({"id": format!("cal_{:032x}", 1), "owner_id": "local",
            "title": "Standup", "description": null, "location": "Room 7", "starts_at": "2030-03-18T09:00:00",
            "ends_at": "2030-03-18T09:15:00", "all_day": false, "event_timezone": "Europe/Berlin",
            "recurrence": "FREQ=WEEKLY", "revision": 1, "created_at": "2030-01-01T00:00:00Z",
            "updated_at": "2030-01-01T00:00:00Z"}))
        .unwrap();
        let expected = "Standup\ncal_00000000000000000000000000000001\n2030-03-18T09:00:00 to 2030-03-18T09:15:00 \
            (Europe/Berlin)\nrepeats: FREQ=WEEKLY\nat: Room 7\n";
        assert_eq!(describe(&event), expected);
    }
}
