//! Automations: jobs that start a run on a schedule, in a thread of their own, on behalf of their owner. The fields have the
//! names of the protocol, in snake_case.

mod next_times;
pub mod schedule;
mod template;
#[cfg(test)]
mod tests;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use self::next_times::{ListNextTimes, NextTime, NextTimes};
use self::schedule::{PlannedStart, Schedule, next_after};
use crate::{
    Failure, Rule, Timestamp,
    ids::{AutomationId, AutomationStartId, CommandId, name},
    kernel::commands::CommandState,
    problems::Problems,
    run_input::{
        agui::input::USER_TEXT_CHARS_MAX,
        local_times::{find_zone, zone_name},
    },
    text::{clip, is_blank_text, is_plain},
};

pub const AUTOMATION_TITLE_CHARS_MAX: usize = 200;
pub const ENABLED_TOOLS_MAX: usize = 64;
/// Characters of a template's unknown place that a failure shows.
const PLACE_CHARS_MAX: usize = 80;
pub const TOOL_NAME_BYTES_MAX: usize = 128;
/// Days of the latest chat that a run may get as context.
pub const WINDOW_DAYS_MAX: u32 = 31;
/// Messages of the latest chat that a run may get as context.
pub const WINDOW_MESSAGES_MAX: u32 = 100;
/// Times of `…/next` in one response.
pub const NEXT_TIMES_MAX: u32 = 50;
pub const NEXT_TIMES_DEFAULT: u32 = 5;
/// Starts of one automation that are kept.
pub const STARTS_KEPT: u32 = 200;
/// The label that the runs of an automation have.
pub const AUTOMATION_LABEL: &str = "automation";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AutomationStatus {
    Active,
    /// It has no next time. It can still be started by a request.
    Disabled,
}

enum_words!(AutomationStatus { Active => "active", Disabled => "disabled" });

/// Why an automation is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DisabledReason {
    /// Its owner has paused it.
    Requested,
    /// Too many of its runs failed, one after the other.
    RepeatedFailure,
    /// The rules of time zones do not have its zone any more.
    UnknownZone,
}

enum_words!(DisabledReason {
    Requested => "requested",
    RepeatedFailure => "repeated-failure",
    UnknownZone => "unknown-zone",
});

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextSource {
    /// The newest thread of the owner that no automation has started.
    LatestChat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowMode {
    /// The messages of this many days, today included.
    Day,
    /// This many messages.
    Number,
}

/// The part of an earlier conversation that a run gets as context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AutomationContext {
    pub source: ContextSource,
    pub window_mode: WindowMode,
    pub window_count: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AutomationConfig {
    /// The message of each run. `{{date}}`, `{{time}}`, `{{timezone}}` and `{{title}}` are replaced.
    pub input_template: String,
    /// The server's tools that the runs are offered; none if it is empty. Left out: all that a chat is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub enabled_tools: Option<Vec<String>>,
    /// Left out: the run gets nothing of earlier conversations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub context: Option<AutomationContext>,
    pub schedule: Schedule,
}

impl AutomationConfig {
    /// Fails with all that is wrong with it.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |message: String| Err::<(), _>(Failure::invalid(Rule::AutomationShape, message));
        let mut problems = Problems::default();
        let chars = self.input_template.chars().count();
        if is_blank_text(&self.input_template) || chars > USER_TEXT_CHARS_MAX {
            problems.note(wrong(format!("config.input_template must have 1 to {USER_TEXT_CHARS_MAX} characters")));
        }
        if let Some(place) = template::unknown_place(&self.input_template) {
            let place = clip(place, PLACE_CHARS_MAX);
            problems.note(wrong(format!("config.input_template: {place} is not replaced; {}", template::PLACES_HINT)));
        }
        let is_tool = |name: &String| {
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
            (1..=TOOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_word)
        };
        let tools = self.enabled_tools.as_deref().unwrap_or_default();
        let is_set = tools.iter().enumerate().all(|(at, tool)| !tools[..at].contains(tool));
        if tools.len() > ENABLED_TOOLS_MAX || !tools.iter().all(is_tool) || !is_set {
            let message = format!("config.enabled_tools are at most {ENABLED_TOOLS_MAX} names of tools, each once");
            problems.note(wrong(message));
        }
        if let Some(context) = &self.context {
            let max = match context.window_mode {
                WindowMode::Day => WINDOW_DAYS_MAX,
                WindowMode::Number => WINDOW_MESSAGES_MAX,
            };
            if !(1..=max).contains(&context.window_count) {
                problems.note(wrong(format!("config.context.window_count must be 1 to {max} in this window_mode")));
            }
        }
        problems.note(self.schedule.check());
        problems.check()
    }
}

/// A job that starts runs on a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Automation {
    pub id: AutomationId,
    pub owner_id: String,
    #[serde(skip)]
    pub tenant_id: String,
    pub title: String,
    /// Unique among the owner's automations.
    pub bootstrap_key: Option<String>,
    pub config: AutomationConfig,
    /// A name of the time zone database, such as `Europe/Berlin`.
    pub timezone: String,
    /// `None` while it is disabled.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_run_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_run_at: Option<Timestamp>,
    pub status: AutomationStatus,
    pub disabled_reason: Option<DisabledReason>,
    /// Runs that failed since the last one that did not.
    pub failures: i64,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    #[serde(skip)]
    pub plan: Plan,
    /// Rises with each change.
    #[serde(skip)]
    pub revision: i64,
}

/// What the next time was computed from, so that it can be computed again when the rules of time zones change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The next time is after this.
    pub after: Timestamp,
    /// The local date of the last start, in the ISO format.
    pub last_date: Option<String>,
    /// The version of the time zone database.
    pub zone_rules: String,
}

impl Plan {
    pub fn last_date(&self) -> Option<Date> {
        self.last_date.as_deref().and_then(|date| date.parse().ok())
    }
}

impl Automation {
    /// The first time of its schedule after an instant. Fails if its zone is not in the database any more.
    pub fn next_after(&self, after: Timestamp) -> Result<Option<PlannedStart>, Failure> {
        Ok(next_after(&self.config.schedule, &find_zone(&self.timezone)?, after))
    }

    /// The text of a run's message.
    pub fn message_at(&self, now: Timestamp) -> Result<String, Failure> {
        let zone = find_zone(&self.timezone)?;
        Ok(template::fill(&self.config.input_template, &self.title, &self.timezone, &now.to_zoned(zone)))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAutomation {
    pub title: String,
    /// A request with the key of an existing automation returns that automation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_key: Option<String>,
    pub config: AutomationConfig,
    /// Left out: the zone of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Left out: `active`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AutomationStatus>,
}

impl CreateAutomation {
    /// Returns the name of the zone as the database writes it.
    pub fn check(&self) -> Result<Option<String>, Failure> {
        let mut problems = Problems::default();
        problems.note(check_title(&self.title));
        problems.note(self.bootstrap_key.as_deref().map_or(Ok(()), |key| name("bootstrap_key", key).map(drop)));
        problems.note(self.config.check());
        let timezone = problems.note(check_timezone(self.timezone.as_deref())).flatten();
        problems.check().map(|()| timezone)
    }
}

/// What is left out stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateAutomation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<AutomationConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `disabled` pauses it, `active` resumes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<AutomationStatus>,
}

impl UpdateAutomation {
    /// Returns the name of the zone as the database writes it.
    pub fn check(&self) -> Result<Option<String>, Failure> {
        let mut problems = Problems::default();
        let is_empty =
            self.title.is_none() && self.config.is_none() && self.timezone.is_none() && self.status.is_none();
        if is_empty {
            let message = "a change needs a title, a config, a timezone or a status";
            return Err(Failure::invalid(Rule::AutomationShape, message));
        }
        problems.note(self.title.as_deref().map_or(Ok(()), check_title));
        problems.note(self.config.as_ref().map_or(Ok(()), AutomationConfig::check));
        let timezone = problems.note(check_timezone(self.timezone.as_deref())).flatten();
        problems.check().map(|()| timezone)
    }
}

/// A request to start an automation at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartAutomation {
    /// A request with the key of an earlier one returns the start of that request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

fn check_title(title: &str) -> Result<(), Failure> {
    if is_plain(title) && title.chars().count() <= AUTOMATION_TITLE_CHARS_MAX {
        return Ok(());
    }
    let message = format!("title must be one line of 1 to {AUTOMATION_TITLE_CHARS_MAX} characters");
    Err(Failure::invalid(Rule::AutomationShape, message))
}

fn check_timezone(timezone: Option<&str>) -> Result<Option<String>, Failure> {
    timezone.map(|name| find_zone(name).map(|zone| zone_name(&zone).to_owned())).transpose()
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListAutomations {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Automations of the caller, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AutomationPage {
    pub automations: Vec<Automation>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StartTrigger {
    Schedule,
    /// A request has started it.
    Request,
}

enum_words!(StartTrigger { Schedule => "schedule", Request => "request" });

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StartStatus {
    /// It is recorded, and its run does not exist yet.
    Starting,
    Running,
    Completed,
    /// The run failed, or could not be started.
    Failed,
    Blocked,
    /// The run was cancelled, or its thread was erased.
    Cancelled,
}

enum_words!(StartStatus {
    Starting => "starting",
    Running => "running",
    Completed => "completed",
    Failed => "failed",
    Blocked => "blocked",
    Cancelled => "cancelled",
});

impl StartStatus {
    /// How the run of a command in this state has ended. `None` if it has not.
    pub fn of_command(state: CommandState) -> Option<Self> {
        match state {
            CommandState::Completed => Some(Self::Completed),
            CommandState::Failed => Some(Self::Failed),
            CommandState::Blocked => Some(Self::Blocked),
            CommandState::Cancelled => Some(Self::Cancelled),
            CommandState::Pending | CommandState::Acked | CommandState::Running => None,
        }
    }
}

/// The failures in a row after a run has ended. One that was cancelled is not evidence about the automation.
pub fn failures_after(failures: i64, ended: StartStatus) -> i64 {
    match ended {
        StartStatus::Completed => 0,
        StartStatus::Failed | StartStatus::Blocked => failures.saturating_add(1),
        StartStatus::Starting | StartStatus::Running | StartStatus::Cancelled => failures,
    }
}

/// One start of an automation, with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AutomationStart {
    pub id: AutomationStartId,
    pub automation_id: AutomationId,
    pub trigger: StartTrigger,
    /// The time of the schedule. `None` if a request has started it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub due_at: Option<Timestamp>,
    pub status: StartStatus,
    /// Why it could not be started.
    pub message: Option<String>,
    /// The thread of the run, as in `GET /api/v1/agent/history`.
    pub thread_id: String,
    /// The run's id in its thread.
    pub run_id: String,
    /// The command behind the run. `None` until it exists.
    pub task_id: Option<CommandId>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListAutomationStarts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Starts of an automation, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AutomationStartPage {
    pub starts: Vec<AutomationStart>,
    pub next_cursor: Option<String>,
}
