//! Every limit people can hit, with its unit in its name. One past a limit is refused whole. The size of a piece of
//! JSON is [`RawJson::size`](crate::RawJson::size): escapes count as the characters they encode. `docs/limits.md` lists
//! them all.

pub const EVENT_BYTES_MAX: usize = 256 * 1024;
pub const APPEND_EVENTS_MAX: usize = 500;
pub const APPEND_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The summary with which a runner ends its job.
pub const JOB_SUMMARY_BYTES_MAX: usize = 16 * 1024;
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The body of a request that starts work or stores a provider profile: its largest texts with every character escaped.
pub const WORK_BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The body of every other request.
pub const SMALL_BODY_BYTES_MAX: usize = 64 * 1024;
/// How deeply a JSON body may nest.
pub const JSON_DEPTH_MAX: usize = 100;
/// Commas and colons of a JSON body: about twice its members and items.
pub const JSON_VALUES_MAX: usize = 20_000;
pub const PROMPT_BYTES_MAX: usize = 256 * 1024;
/// A command's whole payload: the prompt, and as much again for what is sent with it.
pub const COMMAND_PAYLOAD_BYTES_MAX: usize = 512 * 1024;
/// What a dialect may store beside a command: a prompt of 10 MiB as text and again in blocks, and what is sent with it.
pub const WHOLE_PAYLOAD_BYTES_MAX: usize = 24 * 1024 * 1024;
pub const PAGE_ITEMS_MAX: u32 = 1_000;
pub const PAGE_ITEMS_DEFAULT: u32 = 100;
/// A page also ends once its payloads reach this size, so that no page can take the server's memory.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The text of a conversation that an agent receives at once: about 64,000 tokens.
pub const CONVERSATION_BYTES_MAX: usize = 256 * 1024;
/// … and how many events they are looked for in.
pub const CONVERSATION_EVENTS_MAX: i64 = 50_000;
/// Lines of a runner's log in one response, and its bytes.
pub const LOG_LINES_MAX: u32 = 5_000;
pub const LOG_LINES_DEFAULT: u32 = 200;
pub const LOG_BYTES_MAX: usize = 256 * 1024;
pub const WAIT_MS_MAX: u64 = 30_000;
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 200;
pub const NAME_BYTES_MAX: usize = 200;
pub const SESSION_TITLE_BYTES_MAX: usize = 256;
/// What a caller keeps with a session, as JSON.
pub const SESSION_METADATA_BYTES_MAX: usize = 16 * 1024;
/// Labels of a run or session.
pub const LABELS_MAX: usize = 16;
pub const LABEL_KEY_BYTES_MAX: usize = 63;
pub const LABEL_VALUE_BYTES_MAX: usize = 128;
/// A cancel's reason or the message of a status. What is shown of it is [`BLOCKER_CHARS_MAX`].
pub const REASON_BYTES_MAX: usize = 16 * 1024;
/// The reason of a legal hold.
pub const HOLD_REASON_BYTES_MAX: usize = 500;
pub const WORKSPACE_REF_BYTES_MAX: usize = 16 * 1024;
pub const TRACE_SINK_BYTES_MAX: usize = 4 * 1024;
/// A runner's `placement` and `capabilities` together.
pub const RUNNER_BYTES_MAX: usize = 16 * 1024;
pub const COMMANDS_UNFINISHED_MAX: usize = 100;
/// The payloads of a run's unfinished commands together: a claim hands them all out at once.
pub const COMMANDS_UNFINISHED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Open permission requests of a run, unless its policy sets another limit.
pub const PERMISSIONS_OPEN_MAX: usize = 32;
/// The largest limit that a run's policy can set.
pub const PERMISSIONS_OPEN_CEILING: usize = 64;
pub const PERMISSION_BYTES_MAX: usize = 64 * 1024;
pub const PERMISSION_OPTIONS_MAX: usize = 16;
pub const PERMISSION_TITLE_BYTES_MAX: usize = 4 * 1024;
pub const PERMISSION_WAIT_MS_DEFAULT: i64 = 600_000;
pub const PERMISSION_WAIT_MS_MAX: i64 = 86_400_000;
/// Rejected votes on one permission request that are recorded.
pub const PERMISSION_REFUSALS_MAX: i64 = 64;
/// Clients that participate in one session.
pub const SESSION_PARTICIPANTS_MAX: usize = 256;

/// How long its runner has to stop a command that continues beyond a budget, its time included, before the server ends
/// it.
pub const BUDGET_GRACE_MS: i64 = 30_000;
pub const LEASE_MS_MIN: i64 = 10;
pub const LEASE_MS_DEFAULT: i64 = 60_000;
pub const LEASE_MS_MAX: i64 = 600_000;
/// How many distinct waiters of one lease are remembered, each with one `claim-waiting` event.
pub const LEASE_WAITERS_MAX: usize = 16;

/// A runner that has sent no heartbeat for this share of its lease is reported as stale.
pub const HEARTBEAT_STALE_PERCENT: i64 = 80;
/// After a tool ended, silence of this length is reported as `idle-after-tool`.
pub const IDLE_AFTER_TOOL_MS: i64 = 8_000;

pub const TOOL_ITEMS_KEPT: usize = 10;
pub const TOOL_COMMAND_CHARS_MAX: usize = 200;
pub const BLOCKER_CHARS_MAX: usize = 500;
/// A runner job that was started this often without finishing its work is given up.
pub const JOB_ATTEMPTS_MAX: i64 = 5;
/// The profiles that one claim of a runner job may name.
pub const JOB_PROFILES_MAX: usize = 16;

/// The tenants one token or user can be let into.
pub const CALLER_TENANTS_MAX: usize = 64;
/// A user's token, with whatever claims its issuer puts into it.
pub const USER_TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Ten years: a token that is to be valid longer gets no expiry.
pub const TOKEN_LIFE_MS_MAX: i64 = 10 * 366 * 86_400_000;
pub const USER_TOKEN_LIFE_MS_DEFAULT: i64 = 12 * 3_600_000;
/// A user's token cannot be revoked alone, only with the user; so it does not live for long.
pub const USER_TOKEN_LIFE_MS_MAX: i64 = 30 * 86_400_000;

pub const API_KEY_BYTES_MAX: usize = 8 * 1024;
/// One file of a provider profile's secret.
pub const PROFILE_FILE_BYTES_MAX: usize = 256 * 1024;
/// Files that a profile's config describes for its agent's home.
pub const PROFILE_FILES_MAX: usize = 16;
/// Words of the command that a profile's config names.
pub const PROFILE_COMMAND_WORDS_MAX: usize = 64;
/// Provider profiles beside the built-in ones.
pub const PROFILES_MAX: usize = 200;
/// Provider profiles of one tenant.
pub const PROFILES_PER_TENANT_MAX: usize = 32;
