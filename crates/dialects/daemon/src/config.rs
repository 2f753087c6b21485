//! Configuration of the daemon dialect.

mod device_flows;

use std::collections::BTreeMap;

use ostler_protocol::{
    Failure,
    capabilities::{ClientLimits, ClientTerms, Toggle},
    daemon::languages::LANGUAGES,
};
use ostler_server::config::{Config, Section, check_range};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::toggles;

pub use device_flows::DeviceFlowSection;

/// Editors and SDKs that attach to sessions: `/session…`, `/workspace…`, `/file…`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonSection {
    /// The tenant of sessions that clients create.
    pub tenant: String,
    /// The backend profile that handles prompts.
    pub profile: String,
    /// Maximum number of open sessions of one owner.
    pub sessions_max: u32,
    /// Maximum number of prompts of one session that wait or run.
    pub prompts_max: u32,
    /// How many of a session's newest events are replayed to a client that reconnects; an event has one frame, or two. Older
    /// ones count as evicted, although the log has them. Unset: all that the log has.
    pub replay_frames_max: Option<u32>,
    /// Maximum number of event streams of one session.
    pub streams_max: usize,
    /// How long a prompt may take from its submission to its end. Unset: as long as the policy allows.
    pub prompt_deadline_ms: Option<u64>,
    /// Close an event stream to which nothing could be written for this long. Unset: never.
    pub writer_idle_timeout_ms: Option<u64>,
    /// How long a client without an event stream counts as attached after its last request. Then its votes do not count, until it is
    /// seen again.
    pub client_idle_ms: u64,
    /// Close a session that no client is attached to, and that works on no prompt, after this long. Clients can load it again.
    /// Unset: never.
    pub session_idle_ms: Option<u64>,
    /// How long a permission request waits for votes.
    pub permission_timeout_ms: u64,
    /// How many prompts one client may submit within `rate_window_ms`, while `rate_limit.on`.
    pub rate_prompts_max: u32,
    /// How many other changes one client may request within `rate_window_ms`, while `rate_limit.on`.
    pub rate_mutations_max: u32,
    /// How many reads one client may request within `rate_window_ms`, while `rate_limit.on`.
    pub rate_reads_max: u32,
    /// The time within which these requests of a client are counted.
    pub rate_window_ms: u64,
    /// Whether clients may change settings of the workspace.
    pub settings: bool,
    /// Whether clients may make the server read the workspace's settings again.
    pub reload: bool,
    /// Device flows by the id of their provider: `[daemon.device_flows.ID]`, in the environment a JSON object.
    pub device_flows: BTreeMap<String, DeviceFlowSection>,
    /// Whether clients may run shell commands in the workspace. They are confined as the tools of agents are.
    pub session_shell: bool,
}

impl Default for DaemonSection {
    fn default() -> Self {
        Self {
            tenant: "local".into(),
            profile: "scripted".into(),
            sessions_max: 20,
            prompts_max: 5,
            replay_frames_max: None,
            streams_max: 64,
            prompt_deadline_ms: None,
            writer_idle_timeout_ms: None,
            client_idle_ms: 600_000,
            session_idle_ms: Some(IDLE_MS_DEFAULT),
            permission_timeout_ms: 300_000,
            rate_prompts_max: 10,
            rate_mutations_max: 30,
            rate_reads_max: 120,
            rate_window_ms: 60_000,
            settings: true,
            reload: true,
            device_flows: BTreeMap::new(),
            session_shell: false,
        }
    }
}

/// How long an abandoned session stays open by default: a week.
const IDLE_MS_DEFAULT: u64 = 7 * 86_400_000;
/// The longest idle time that can be configured: ten years.
const IDLE_MS_MAX: u64 = 3_650 * 86_400_000;
/// The longest wait that can be configured: a day.
const WAIT_MS_MAX: u64 = 86_400_000;
/// The most requests that can be configured for one window.
const RATE_MAX: u64 = 1_000_000;

impl Section for DaemonSection {
    const NAME: &'static str = "daemon";
    /// Those of the published daemon, so that a deployment can be moved here.
    const VARIABLES: &'static [(&'static str, &'static str)] = &[
        ("QWEN_SERVE_PROMPT_DEADLINE_MS", "daemon.prompt_deadline_ms"),
        ("QWEN_SERVE_WRITER_IDLE_TIMEOUT_MS", "daemon.writer_idle_timeout_ms"),
        ("QWEN_SERVE_RATE_LIMIT", "rate_limit.on"),
        ("QWEN_SERVE_RATE_LIMIT_PROMPT", "daemon.rate_prompts_max"),
        ("QWEN_SERVE_RATE_LIMIT_MUTATION", "daemon.rate_mutations_max"),
        ("QWEN_SERVE_RATE_LIMIT_READ", "daemon.rate_reads_max"),
        ("QWEN_SERVE_RATE_LIMIT_WINDOW_MS", "daemon.rate_window_ms"),
        ("QWEN_SERVE_NO_MCP_POOL", "mcp.no_pool"),
        ("QWEN_SERVE_MCP_CLIENT_BUDGET", "mcp.client_budget"),
        ("QWEN_SERVE_MCP_BUDGET_MODE", "mcp.budget_mode"),
        ("QWEN_SERVE_MCP_POOL_DRAIN_MS", "mcp.drain_ms"),
    ];

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let checks = [
            check_range("daemon.sessions_max", u64::from(self.sessions_max), 1..=100_000),
            check_range("daemon.prompts_max", u64::from(self.prompts_max), 1..=1_000),
            check_range("daemon.replay_frames_max", self.replay_frames_max.map_or(1, u64::from), 1..=1_000_000),
            check_range("daemon.streams_max", self.streams_max as u64, 1..=100_000),
            check_range("daemon.prompt_deadline_ms", self.prompt_deadline_ms.unwrap_or(1), 1..=WAIT_MS_MAX),
            check_range("daemon.writer_idle_timeout_ms", self.writer_idle_timeout_ms.unwrap_or(1), 1..=WAIT_MS_MAX),
            check_range("daemon.client_idle_ms", self.client_idle_ms, 1_000..=WAIT_MS_MAX),
            check_range("daemon.session_idle_ms", self.session_idle_ms.unwrap_or(1_000), 1_000..=IDLE_MS_MAX),
            check_range("daemon.permission_timeout_ms", self.permission_timeout_ms, 1..=WAIT_MS_MAX),
            check_range("daemon.rate_prompts_max", u64::from(self.rate_prompts_max), 1..=RATE_MAX),
            check_range("daemon.rate_mutations_max", u64::from(self.rate_mutations_max), 1..=RATE_MAX),
            check_range("daemon.rate_reads_max", u64::from(self.rate_reads_max), 1..=RATE_MAX),
            check_range("daemon.rate_window_ms", self.rate_window_ms, 1..=WAIT_MS_MAX),
        ];
        let problems = checks.into_iter().filter_map(Result::err);
        problems.chain(device_flows::problems(&self.device_flows)).collect()
    }
}

/// What clients have to know before they attach.
pub(crate) fn client_terms(config: &Config) -> ClientTerms {
    let section = config.section::<DaemonSection>();
    ClientTerms {
        limits: ClientLimits { max_pending_prompts_per_session: Some(section.prompts_max) },
        supported_languages: LANGUAGES.iter().map(|(code, _)| (*code).to_owned()).collect(),
    }
}

/// The toggles of this dialect that are on.
pub(crate) fn enabled_toggles(config: &Config) -> Vec<Toggle> {
    let section = config.section::<DaemonSection>();
    let has_workspace = config.server.workspace.is_some();
    let states = [
        (toggles::PROMPT_DEADLINE, section.prompt_deadline_ms.is_some()),
        (toggles::WRITER_IDLE, section.writer_idle_timeout_ms.is_some()),
        (toggles::WORKSPACE, has_workspace),
        (toggles::SETTINGS, has_workspace && section.settings),
        (toggles::RELOAD, has_workspace && section.reload),
        (toggles::SESSION_SHELL, has_workspace && section.session_shell),
    ];
    states.into_iter().filter(|(_, is_on)| *is_on).map(|(toggle, _)| toggle).collect()
}

#[cfg(test)]
mod tests {
    use ostler_server::config::{Environment, Overrides, SectionType};

    use super::*;

    fn load(variables: &[(&str, &str)], file: &str, flags: Vec<(&'static str, String)>) -> Result<Config, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ostler.toml");
        std::fs::write(&path, file).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let overrides = Overrides { keys: flags, ..Overrides::default() };
        let sections = [SectionType::of::<DaemonSection>()];
        Config::load(Some(&path), &Environment::with_taken(variables), overrides, &sections)
    }

    fn deadline(config: &Config) -> Option<u64> {
        config.section::<DaemonSection>().prompt_deadline_ms
    }

    #[test]
    fn the_guide_lists_every_variable_of_the_published_daemon() {
        let guide = include_str!("../../../../docs/daemon.md");
        for (variable, key) in DaemonSection::VARIABLES {
            assert!(guide.contains(&format!("| `{variable}` | `{key}` |")), "{variable}");
        }
    }

    #[test]
    fn variables_of_the_published_daemon_give_way_to_our_own_settings() {
        let theirs = ("QWEN_SERVE_PROMPT_DEADLINE_MS", "1000");
        let file = "[daemon]\nprompt_deadline_ms = 2000\n";
        let flag = || vec![("daemon.prompt_deadline_ms", "4000".to_owned())];
        assert_eq!(deadline(&load(&[theirs], "", vec![]).unwrap()), Some(1_000));
        assert_eq!(deadline(&load(&[theirs], file, vec![]).unwrap()), Some(2_000));
        let ours = ("OSTLER_DAEMON__PROMPT_DEADLINE_MS", "3000");
        assert_eq!(deadline(&load(&[theirs, ours], file, vec![]).unwrap()), Some(3_000));
        assert_eq!(deadline(&load(&[theirs, ours], file, flag()).unwrap()), Some(4_000));
        assert_eq!(deadline(&load(&[], "", vec![]).unwrap()), None);
    }

    #[test]
    fn replays_are_limited_only_on_request() {
        let limit = |config: Config| config.section::<DaemonSection>().replay_frames_max;
        assert_eq!(limit(load(&[], "", vec![]).unwrap()), None);
        assert_eq!(limit(load(&[], "[daemon]\nreplay_frames_max = 20\n", vec![]).unwrap()), Some(20));
    }

    #[test]
    fn every_variable_of_the_published_daemon_sets_its_key() {
        let variables = [
            ("QWEN_SERVE_WRITER_IDLE_TIMEOUT_MS", "20000"),
            ("QWEN_SERVE_RATE_LIMIT", "1"),
            ("QWEN_SERVE_RATE_LIMIT_PROMPT", "1"),
            ("QWEN_SERVE_RATE_LIMIT_MUTATION", "2"),
            ("QWEN_SERVE_RATE_LIMIT_READ", "3"),
            ("QWEN_SERVE_RATE_LIMIT_WINDOW_MS", "4000"),
        ];
        let config = load(&variables, "", vec![]).unwrap();
        let section = config.section::<DaemonSection>();
        assert!(config.rate_limit.on);
        assert_eq!(section.writer_idle_timeout_ms, Some(20_000));
        let rates = (section.rate_prompts_max, section.rate_mutations_max, section.rate_reads_max);
        assert_eq!((rates, section.rate_window_ms), ((1, 2, 3), 4_000));
    }

    #[test]
    fn values_that_cannot_work_are_rejected_with_their_place() {
        for (variable, value, expected) in [
            ("QWEN_SERVE_PROMPT_DEADLINE_MS", "0", "daemon.prompt_deadline_ms must be 1 to 86400000"),
            ("QWEN_SERVE_PROMPT_DEADLINE_MS", "soon", "daemon.prompt_deadline_ms: must be a whole number"),
            ("QWEN_SERVE_WRITER_IDLE_TIMEOUT_MS", "-1", "daemon.writer_idle_timeout_ms: must be a whole number"),
            ("QWEN_SERVE_RATE_LIMIT_READ", "0", "daemon.rate_reads_max must be 1 to 1000000"),
            ("OSTLER_DAEMON__REPLAY_FRAMES_MAX", "0", "daemon.replay_frames_max must be 1 to 1000000"),
            ("OSTLER_DAEMON__PERMISSION_TIMEOUT_MS", "0", "daemon.permission_timeout_ms must be 1 to 86400000"),
        ] {
            let message = load(&[(variable, value)], "", vec![]).unwrap_err().message;
            assert!(message.starts_with(&format!("{variable}: {expected}")), "{message}");
        }
    }

    #[test]
    fn each_toggle_follows_its_setting() {
        let mut config = Config::default();
        assert_eq!(enabled_toggles(&config), []);
        config.server.workspace = Some("/w".into());
        assert_eq!(enabled_toggles(&config), [toggles::WORKSPACE, toggles::SETTINGS, toggles::RELOAD]);
        config.change(|daemon: &mut DaemonSection| {
            (daemon.settings, daemon.reload, daemon.session_shell) = (false, false, true);
            (daemon.prompt_deadline_ms, daemon.writer_idle_timeout_ms) = (Some(1), Some(1));
        });
        assert_eq!(
            enabled_toggles(&config),
            [toggles::PROMPT_DEADLINE, toggles::WRITER_IDLE, toggles::WORKSPACE, toggles::SESSION_SHELL]
        );
    }
}
