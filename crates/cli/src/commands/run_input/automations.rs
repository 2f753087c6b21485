//! `ostler automations`: jobs that start a run on a schedule.

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    limits::PAGE_ITEMS_MAX,
    run_input::automations::{
        Automation, AutomationConfig, AutomationStart, AutomationStatus, CreateAutomation, DisabledReason,
        ListAutomationStarts, ListAutomations, ListNextTimes, NextTime, StartTrigger, UpdateAutomation,
        schedule::Schedule,
    },
    run_input::local_times::{LocalTimeKind, find_zone, local_text},
};

use super::job_flags::JobFlags;
use crate::{
    commands::list::{ListFlags, Listing, all_pages},
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        table::{Column, table},
    },
};

const NAMED: &str = "An automation: its id, the beginning of it, or its title";
const LIST: &str = "ostler automations list";
/// From Monday, as a schedule counts them.
const DAY_NAMES: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// Start runs on a schedule, and see how they ended
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler automations create 'Morning digest' --at 07:30 \\\n      --message 'Summarise the news of {{date}}.'\n  \
    ostler automations next 'Morning digest'\n  ostler automations history 'Morning digest'")]
pub(crate) struct AutomationsArgs {
    #[command(subcommand)]
    verb: AutomationsVerb,
}

#[derive(Subcommand, Debug)]
enum AutomationsVerb {
    List(ListAutomationsArgs),
    Show(ShowAutomationArgs),
    Create(CreateAutomationArgs),
    Update(UpdateAutomationArgs),
    Delete(DeleteAutomationArgs),
    Run(RunAutomationArgs),
    Pause(PauseAutomationArgs),
    Resume(ResumeAutomationArgs),
    Next(NextTimesArgs),
    History(AutomationHistoryArgs),
}

/// List your automations, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations list\n  ostler automations list --paused -o json")]
struct ListAutomationsArgs {
    /// Only those that are paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    list: ListFlags,
}

/// Show an automation
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations show 'Morning digest'")]
struct ShowAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    output: Output,
}

/// Create an automation
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    ostler automations create 'Morning digest' --at 07:30 --message 'News?'\n  \
    ostler automations create Review --at 17:00 --on fri \\\n      --timezone Europe/Berlin --message 'Review the week.'")]
struct CreateAutomationArgs {
    title: String,
    #[command(flatten)]
    job: JobFlags,
    /// A key of your choice: creating an automation with the same key again changes nothing
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Create it paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    output: Output,
}

/// Change an automation
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations update 'Morning digest' --at 08:00 --on mon,tue,wed,thu,fri")]
struct UpdateAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    /// A new title
    #[arg(long)]
    title: Option<String>,
    #[command(flatten)]
    job: JobFlags,
    #[command(flatten)]
    output: Output,
}

/// Delete an automation and its history; its runs and their threads stay
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations delete 'Morning digest' --yes")]
struct DeleteAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Start an automation now, whatever its schedule
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations run 'Morning digest'")]
struct RunAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    output: Output,
}

/// Pause an automation: it starts no more runs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations pause 'Morning digest'")]
struct PauseAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    output: Output,
}

/// Resume a paused automation
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations resume 'Morning digest'")]
struct ResumeAutomationArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    output: Output,
}

/// Show when an automation will start
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations next 'Morning digest' --count 3")]
struct NextTimesArgs {
    #[arg(help = NAMED)]
    automation: String,
    /// How many times
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    count: u32,
    /// From this date in the automation's time zone, such as 2026-10-25
    #[arg(long, value_name = "DATE")]
    from: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// List the starts of an automation and how they ended, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler automations history 'Morning digest' -n 10")]
struct AutomationHistoryArgs {
    #[arg(help = NAMED)]
    automation: String,
    #[command(flatten)]
    list: ListFlags,
}

pub(crate) async fn automations(connection: &Connection, args: &AutomationsArgs) -> Result<u8, Failure> {
    use AutomationsVerb::{Create, Delete, History, List, Next, Pause, Resume, Run, Show, Update};
    let active = |status| UpdateAutomation { status: Some(status), ..UpdateAutomation::default() };
    match &args.verb {
        List(args) => list(connection, args).await,
        Show(args) => show(connection, args).await,
        Create(args) => create(connection, args).await,
        Update(args) => {
            let change = |old: &Automation| args.job.change(old, args.title.clone());
            update(connection, &args.automation, &args.output, change).await
        }
        Delete(args) => delete(connection, args).await,
        Run(args) => run(connection, args).await,
        Pause(args) => update(connection, &args.automation, &args.output, |_| active(AutomationStatus::Disabled)).await,
        Resume(args) => update(connection, &args.automation, &args.output, |_| active(AutomationStatus::Active)).await,
        Next(args) => next(connection, args).await,
        History(args) => history(connection, args).await,
    }
}

/// An automation by its id, the beginning of its id, or its title.
async fn find(client: &Client, word: &str) -> Result<Automation, Failure> {
    let all = all_pages(async |cursor| {
        let page =
            client.list_automations(&ListAutomations { limit: Some(PAGE_ITEMS_MAX), cursor, status: None }).await?;
        Ok((page.automations, page.next_cursor))
    });
    let all = all.await?;
    let titled = all.iter().filter(|automation| automation.title == word);
    let titled: Vec<_> = titled.map(|automation| automation.id.to_string()).collect();
    if titled.len() > 1 {
        return Err(targets::same_title(word, "automations", &titled));
    }
    let fits = |automation: &&Automation| automation.title == word || automation.id.to_string().starts_with(word);
    let found = all.iter().filter(fits).map(|automation| (automation.id.to_string(), line(&automation.title, 40)));
    let id = targets::one(word, "automation id", found.collect())?;
    let found = id.and_then(|id| all.into_iter().find(|automation| automation.id.to_string() == id));
    found.ok_or_else(|| errors::listed_by(targets::unknown("automation", word), LIST))
}

async fn list(connection: &Connection, args: &ListAutomationsArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let status = args.paused.then(|| AutomationStatus::Disabled.as_str().to_owned());
    let query = ListAutomations { status, limit: Some(limit), cursor: None };
    let page = connection.client()?.list_automations(&query).await?;
    AUTOMATIONS.print(&page.automations, page.next_cursor.is_some(), times, output)
}

async fn show(connection: &Connection, args: &ShowAutomationArgs) -> Result<u8, Failure> {
    let automation = find(&connection.client()?, &args.automation).await?;
    args.output.one(&automation, || describe(&automation));
    Ok(exit_codes::OK)
}

async fn create(connection: &Connection, args: &CreateAutomationArgs) -> Result<u8, Failure> {
    let (Some(at), Some(message)) = (args.job.at, args.job.message.clone()) else {
        return Err(errors::usage("an automation needs a time and a message", "add --at HH:MM and --message TEXT"));
    };
    let request = CreateAutomation {
        title: args.title.clone(),
        bootstrap_key: args.key.clone(),
        config: AutomationConfig {
            input_template: message,
            enabled_tools: args.job.enabled_tools(),
            context: args.job.context(),
            schedule: args.job.schedule(at, None),
        },
        timezone: args.job.timezone.clone(),
        status: args.paused.then_some(AutomationStatus::Disabled),
    };
    let made = connection.client()?.create_automation(&request).await?;
    args.output.one(&made, || format!("{}\n", made.id));
    if let Some(next) = made.next_run_at {
        output::message(&format!("starts next at {}\n", local(next, &made.timezone)));
    }
    Ok(exit_codes::OK)
}

async fn update(
    connection: &Connection,
    word: &str,
    output: &Output,
    change: impl FnOnce(&Automation) -> UpdateAutomation,
) -> Result<u8, Failure> {
    let client = connection.client()?;
    let old = find(&client, word).await?;
    let changed = client.update_automation(&old.id.to_string(), &change(&old)).await?;
    output.one(&changed, || describe(&changed));
    Ok(exit_codes::OK)
}

async fn delete(connection: &Connection, args: &DeleteAutomationArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let automation = find(&client, &args.automation).await?;
    if !args.confirm.ask(&format!("delete the automation {} and its history?", line(&automation.title, 80)))? {
        return Ok(exit_codes::OK);
    }
    client.delete_automation(&automation.id.to_string()).await?;
    args.output.one(&automation, || format!("{} deleted\n", line(&automation.title, 200)));
    Ok(exit_codes::OK)
}

async fn run(connection: &Connection, args: &RunAutomationArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let automation = find(&client, &args.automation).await?;
    let start = client.start_automation(&automation.id.to_string()).await?;
    args.output.one(&start, || format!("{}\n", start.thread_id));
    let invocation = connection.invocation();
    output::message(&format!("its outcome: {invocation} automations history {}\n", automation.id));
    Ok(exit_codes::OK)
}

async fn next(connection: &Connection, args: &NextTimesArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let automation = find(&client, &args.automation).await?;
    let query = ListNextTimes { count: Some(args.count), from: args.from.clone() };
    let next = client.list_next_times(&automation.id.to_string(), &query).await?;
    args.output.one(&next, || {
        let rows = next.times.iter().map(|time| vec![time.local.clone(), note(time).to_owned()]).collect();
        table(&[Column::whole("START"), Column::text(1, "NOTE")], rows, output::width())
    });
    if automation.status == AutomationStatus::Disabled {
        output::message("it is paused; these are the times that it would have\n");
    }
    Ok(exit_codes::OK)
}

fn note(time: &NextTime) -> &'static str {
    match time.local_time {
        LocalTimeKind::Exact => "",
        LocalTimeKind::Missing => "the clocks skip the local time",
        LocalTimeKind::Ambiguous => "the first of two equal local times",
    }
}

async fn history(connection: &Connection, args: &AutomationHistoryArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let client = connection.client()?;
    let automation = find(&client, &args.automation).await?;
    let query = ListAutomationStarts { limit: Some(limit), cursor: None };
    let page = client.list_automation_starts(&automation.id.to_string(), &query).await?;
    STARTS.print(&page.starts, page.next_cursor.is_some(), times, output)
}

/// An instant in a zone; in UTC if this program does not know the zone.
fn local(at: Timestamp, zone: &str) -> String {
    find_zone(zone).map_or_else(|_| at.to_string(), |zone| local_text(at, &zone))
}

/// `daily 17:00`, `Mon, Fri 07:30` or `Mon–Fri 07:30`: short enough to stay whole in a table.
fn schedule_text(schedule: &Schedule) -> String {
    let is_on = |day: usize| schedule.weekdays.iter().any(|on| usize::from(*on) == day + 1);
    let mut ranges: Vec<(usize, usize)> = vec![];
    for day in (0..DAY_NAMES.len()).filter(|day| is_on(*day)) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == day => *last = day,
            _ => ranges.push((day, day)),
        }
    }
    let text = |(first, last): &(usize, usize)| match last - first {
        0 => DAY_NAMES[*first].to_owned(),
        1 => format!("{}, {}", DAY_NAMES[*first], DAY_NAMES[*last]),
        _ => format!("{}–{}", DAY_NAMES[*first], DAY_NAMES[*last]),
    };
    let days = match ranges.as_slice() {
        [] | [(0, 6)] => "daily".to_owned(),
        ranges => ranges.iter().map(text).collect::<Vec<_>>().join(", "),
    };
    format!("{days} {:02}:{:02}", schedule.run_at.hour, schedule.run_at.minute)
}

fn status_text(automation: &Automation) -> &'static str {
    match (automation.status, automation.disabled_reason) {
        (AutomationStatus::Active, _) => "active",
        (AutomationStatus::Disabled, Some(DisabledReason::RepeatedFailure)) => "paused, failed",
        (AutomationStatus::Disabled, Some(DisabledReason::UnknownZone)) => "paused, unknown zone",
        (AutomationStatus::Disabled, _) => "paused",
    }
}

fn describe(automation: &Automation) -> String {
    let time = |at: Option<Timestamp>| at.map_or_else(|| "-".to_owned(), |at| local(at, &automation.timezone));
    let mut text = format!(
        "{}\n{}: {}\nschedule: {} ({})\nnext: {}\nlast: {}\n",
        line(&automation.title, 200),
        automation.id,
        status_text(automation),
        schedule_text(&automation.config.schedule),
        automation.timezone,
        time(automation.next_run_at),
        time(automation.last_run_at),
    );
    if automation.failures > 0 {
        text += &format!("failures in a row: {}\n", automation.failures);
    }
    match automation.config.enabled_tools.as_deref() {
        None => {}
        Some([]) => text += "tools: none\n",
        Some(tools) => text += &format!("tools: {}\n", line(&tools.join(", "), 400)),
    }
    text + &format!("message: {}\n", line(&automation.config.input_template, 1_000))
}

const AUTOMATIONS: Listing<Automation> = Listing {
    nothing: "no automations; create one: ostler automations create TITLE --at HH:MM --message TEXT\n",
    columns: &[
        Column::whole("AUTOMATION"),
        Column::text(4, "TITLE"),
        Column::whole("STATUS"),
        Column::whole("SCHEDULE"),
        Column::spare(1, "TIME ZONE"),
        Column::spare(2, "NEXT"),
    ],
    row: |automation, _, _| {
        vec![
            automation.id.to_string(),
            line(&automation.title, 200),
            status_text(automation).to_owned(),
            schedule_text(&automation.config.schedule),
            automation.timezone.clone(),
            automation.next_run_at.map_or_else(|| "-".to_owned(), |next| local(next, &automation.timezone)),
        ]
    },
};

const STARTS: Listing<AutomationStart> = Listing {
    nothing: "it has not started yet; `ostler automations run` starts it now\n",
    columns: &[
        Column::whole("STARTED"),
        Column::whole("STATUS"),
        Column::spare(2, "BY"),
        Column::whole("THREAD"),
        Column::text(3, "MESSAGE"),
    ],
    row: |start, times, now| {
        vec![
            times.ago(start.created_at, now),
            start.status.as_str().to_owned(),
            match start.trigger {
                StartTrigger::Schedule => "schedule".to_owned(),
                StartTrigger::Request => "request".to_owned(),
            },
            start.thread_id.clone(),
            line(start.message.as_deref().unwrap_or("-"), 200),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::times::Times;

    fn automation() -> Automation {
        serde_json::from_value(json!({"id": format!("aut_{:032x}", 1), "owner_id": "local", "title": "Morning digest",
            "bootstrap_key": null, "config": {"input_template": "Summarise.", "enabled_tools": ["calendar_write"],
            "schedule": {"type": "weekly", "run_at": {"hour": 7, "minute": 5}, "weekdays": [1, 5]}},
            "timezone": "Europe/Berlin", "next_run_at": "2030-01-04T06:05:00Z", "last_run_at": null, "status": "active",
            "disabled_reason": null, "failures": 2, "created_at": "2030-01-01T00:00:00Z",
            "updated_at": "2030-01-01T00:00:00Z"}))
        .unwrap()
    }

    #[test]
    fn an_automation_is_described_in_its_own_zone() {
        let expected = "Morning digest\naut_00000000000000000000000000000001: active\nschedule: Mon, Fri 07:05 \
            (Europe/Berlin)\nnext: 2030-01-04T07:05:00+01:00\nlast: -\nfailures in a row: 2\ntools: calendar_write\n\
            message: Summarise.\n";
        assert_eq!(describe(&automation()), expected);
    }

    #[test]
    fn a_schedule_is_short() {
        for (weekdays, text) in [
            (json!([]), "daily 07:05"),
            (json!([1, 2, 3, 4, 5, 6, 7]), "daily 07:05"),
            (json!([1, 2, 3, 4, 5]), "Mon–Fri 07:05"),
            (json!([6, 7]), "Sat, Sun 07:05"),
            (json!([1, 3, 4, 5]), "Mon, Wed–Fri 07:05"),
        ] {
            let schedule = json!({"type": "weekly", "run_at": {"hour": 7, "minute": 5}, "weekdays": weekdays});
            assert_eq!(schedule_text(&serde_json::from_value(schedule).unwrap()), text);
        }
    }

    #[test]
    fn the_table_fits_a_narrow_terminal() {
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        let text = AUTOMATIONS.render(&[automation()], Times::default(), now, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("active") && text.contains("Mon, Fri 07:05"), "{text}");
    }

    #[test]
    fn a_start_is_shown_with_its_outcome_and_thread() {
        let start: AutomationStart = serde_json::from_value(json!({"id": format!("ast_{:032x}", 1),
            "automation_id": format!("aut_{:032x}", 1), "trigger": "schedule", "due_at": "2030-01-01T00:00:00Z",
            "status": "completed", "message": null, "thread_id": "019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f", "run_id": "r",
            "task_id": null, "created_at": "2030-01-01T00:00:00Z", "ended_at": null}))
        .unwrap();
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        let text = STARTS.render(&[start], Times::default(), now, None);
        let row = "2h ago   completed  schedule  019a8f6e-7c3b-7d2a-9c1e-5a4b3c2d1e0f  -";
        assert_eq!(text.lines().nth(1), Some(row), "{text}");
    }
}
