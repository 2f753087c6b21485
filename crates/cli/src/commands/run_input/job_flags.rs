//! The flags of `ostler automations create` and `update`.

use ostler_protocol::run_input::automations::{
    Automation, AutomationConfig, AutomationContext, ContextSource, UpdateAutomation, WindowMode,
    schedule::{RunAt, Schedule, ScheduleType},
};

/// The words for weekdays, from Monday.
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// What an automation does. For `update`, what is left out stays as it is.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct JobFlags {
    /// The local time of each start: 07:30
    #[arg(long, value_name = "HH:MM", value_parser = parse_time)]
    pub at: Option<RunAt>,
    /// Weekdays: mon,wed,fri; `every` for every day [default: every]
    #[arg(long, value_name = "DAYS", value_parser = parse_days)]
    on: Option<Days>,
    /// The time zone, by its name in the time zone database: Europe/Berlin [default: yours]
    #[arg(long, value_name = "ZONE")]
    pub timezone: Option<String>,
    /// The message of each run; {{date}}, {{time}}, {{timezone}} and {{title}} are replaced
    #[arg(short, long, value_name = "TEXT")]
    pub message: Option<String>,
    /// A tool that the runs may use; can be repeated
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// Give each run the messages of your latest chat of this many days
    #[arg(long, value_name = "DAYS", conflicts_with = "chat_messages")]
    chat_days: Option<u32>,
    /// Give each run this many messages of your latest chat
    #[arg(long, value_name = "COUNT")]
    chat_messages: Option<u32>,
}

/// Weekdays of a schedule; empty for every day.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Days(Vec<u8>);

impl JobFlags {
    pub(super) fn schedule(&self, at: RunAt, old: Option<&Schedule>) -> Schedule {
        let weekdays = match (&self.on, old) {
            (Some(Days(days)), _) => days.clone(),
            (None, Some(old)) => old.weekdays.clone(),
            (None, None) => vec![],
        };
        let kind = if weekdays.is_empty() { ScheduleType::Daily } else { ScheduleType::Weekly };
        Schedule { kind, run_at: at, weekdays }
    }

    /// The tools that are named. `None` if there is none.
    pub(super) fn enabled_tools(&self) -> Option<Vec<String>> {
        Some(self.tools.clone()).filter(|tools| !tools.is_empty())
    }

    pub(super) fn context(&self) -> Option<AutomationContext> {
        let (window_mode, window_count) = match (self.chat_days, self.chat_messages) {
            (Some(days), _) => (WindowMode::Day, days),
            (None, Some(messages)) => (WindowMode::Number, messages),
            (None, None) => return None,
        };
        Some(AutomationContext { source: ContextSource::LatestChat, window_mode, window_count })
    }

    pub(super) fn change(&self, old: &Automation, title: Option<String>) -> UpdateAutomation {
        let at = self.at.unwrap_or(old.config.schedule.run_at);
        let config = AutomationConfig {
            input_template: self.message.clone().unwrap_or_else(|| old.config.input_template.clone()),
            enabled_tools: self.enabled_tools().or_else(|| old.config.enabled_tools.clone()),
            context: self.context().or_else(|| old.config.context.clone()),
            schedule: self.schedule(at, Some(&old.config.schedule)),
        };
        let config = Some(config).filter(|config| *config != old.config);
        UpdateAutomation { title, config, timezone: self.timezone.clone(), status: None }
    }
}

fn parse_time(text: &str) -> Result<RunAt, String> {
    let time = text.split_once(':').and_then(|(hour, minute)| Some((hour.parse().ok()?, minute.parse().ok()?)));
    match time {
        Some((hour @ 0..=23, minute @ 0..=59)) => Ok(RunAt { hour, minute }),
        _ => Err("not a time of day such as 07:30".into()),
    }
}

fn parse_days(text: &str) -> Result<Days, String> {
    if text == "every" {
        return Ok(Days(vec![]));
    }
    let number = |word: &str| {
        let at = WEEKDAYS.iter().position(|day| *day == word.trim().to_ascii_lowercase());
        at.map(|at| at as u8 + 1).ok_or_else(|| format!("{word:?} is not one of {}", WEEKDAYS.join(", ")))
    };
    let mut days = text.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    days.sort_unstable();
    days.dedup();
    Ok(Days(days))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_days_are_read() {
        assert_eq!(parse_time("07:30"), Ok(RunAt { hour: 7, minute: 30 }));
        for bad in ["7", "24:00", "07:60", "a:b", ""] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_days("fri,MON,mon"), Ok(Days(vec![1, 5])));
        assert_eq!(parse_days("every"), Ok(Days(vec![])));
        assert!(parse_days("monday").is_err());
    }

    #[test]
    fn an_update_changes_what_is_given_and_nothing_else() {
        let old: Automation = serde_json::from_value(json!({"id": format!("aut_{:032x}", 1), "owner_id": "local",
            "title": "Morning digest", "bootstrap_key": null, "config": {"input_template": "Summarise.",
            "schedule": {"type": "weekly", "run_at": {"hour": 7, "minute": 5}, "weekdays": [1, 5]}},
            "timezone": "UTC", "next_run_at": null, "last_run_at": null, "status": "active", "disabled_reason": null,
            "failures": 0, "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-01T00:00:00Z"}))
        .unwrap();
        let flags = JobFlags { at: Some(RunAt { hour: 8, minute: 0 }), ..JobFlags::default() };
        let change = flags.change(&old, None);
        let config = change.config.unwrap();
        assert_eq!(config.schedule.weekdays, [1, 5]);
        assert_eq!((config.schedule.run_at.hour, config.input_template.as_str()), (8, "Summarise."));
        let change = JobFlags::default().change(&old, Some("Digest".into()));
        assert_eq!((change.config, change.title.as_deref()), (None, Some("Digest")));
    }
}
