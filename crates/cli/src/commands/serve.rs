//! `ostler serve`: runs the server in the foreground. One JSON line on stdout reports that it is ready, logs go to stderr, and
//! SIGINT or SIGTERM stops it gracefully.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

use clap::ValueEnum;
use ostler_protocol::Failure;
use ostler_server::{
    Config, Server,
    config::{LogFormat, Overrides},
    dialect::Dialects,
};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    connection::{Connection, invocation_of_server},
    environment, exit_codes, log,
    terminal::output,
};

/// Start the server
///
/// Without flags it listens on 127.0.0.1:4747 and stores everything in the data directory, where the first start creates
/// the operator's token. When it is ready, it prints one JSON object with `address` and `tokenFile` on stdout.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler serve\n  ostler serve --listen 127.0.0.1:0 --data-dir ./data\n  \
    ostler serve --database-url postgres://localhost/ostler --log-format json")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    flags: ServerFlags,
    /// The format of logs on stderr [default: text]; OSTLER_LOG, else RUST_LOG, sets what is logged
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormatFlag>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatFlag {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The settings that flags can override.
#[derive(clap::Args, Debug)]
pub(crate) struct ServerFlags {
    /// The address to listen on; port 0 picks a free one [default: 127.0.0.1:4747]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    /// Accept callers on this machine without a token; for experiments
    #[arg(long)]
    open_loopback: bool,
    /// Require a token everywhere, also for /health and /capabilities
    #[arg(long, conflicts_with = "open_loopback")]
    require_auth: bool,
    /// Accept calls from web pages of this origin, for example https://console.example; can be repeated; `*` is every
    /// origin and needs --require-auth
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Limit the request rate of each caller; the rates are in the configuration's [rate_limit] and [daemon]
    #[arg(long)]
    rate_limit: bool,
    #[command(flatten)]
    daemon: DaemonFlags,
    /// The domain whose names this server certifies in the mesh [default: localhost.test]
    #[arg(long, value_name = "DOMAIN")]
    mesh_issuer: Option<String>,
    /// Use TLS with this certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Start even if the store's settings may lose acknowledged writes in a power failure
    #[arg(long)]
    unsafe_durability: bool,
}

/// The settings of the server for editors and SDKs that attach to it.
#[derive(clap::Args, Debug)]
struct DaemonFlags {
    /// Bind the server to this directory: agents of editors work in it, and editors read and write its files; a relative path
    /// is resolved from the current directory
    #[arg(long, value_name = "DIR")]
    workspace: Option<String>,
    /// Cancel a prompt that takes longer than this, in milliseconds
    #[arg(long, value_name = "MS")]
    prompt_deadline_ms: Option<String>,
    /// Close an event stream to which nothing could be written for this long, in milliseconds; use more than 15000
    #[arg(long, value_name = "MS")]
    writer_idle_timeout_ms: Option<String>,
    /// Replay at most this many of a session's newest events to a client that reconnects [default: all that the log has]
    #[arg(long, value_name = "COUNT")]
    event_ring_size: Option<String>,
    /// Maximum number of open sessions of editors and SDKs [default: 20]
    #[arg(long, value_name = "COUNT")]
    max_sessions: Option<String>,
    /// Maximum number of connections to the server
    #[arg(long, value_name = "COUNT")]
    max_connections: Option<String>,
    /// How long a permission request of a session waits for votes, in milliseconds [default: 300000]
    #[arg(long, value_name = "MS")]
    permission_response_timeout_ms: Option<String>,
    /// How many MCP servers may be connected at once
    #[arg(long, value_name = "COUNT")]
    mcp_client_budget: Option<String>,
    /// What happens when --mcp-client-budget is used up: off, warn or enforce [default: warn]
    #[arg(long, value_name = "MODE")]
    mcp_budget_mode: Option<String>,
    /// Let clients run shell commands in the workspace, confined as the tools of agents are
    #[arg(long)]
    enable_session_shell: bool,
}

impl DaemonFlags {
    /// The keys that were given as flags, with their values.
    fn keys(&self) -> impl Iterator<Item = (&'static str, String)> {
        // A relative path is one of this directory. A path that cannot be resolved is rejected with the configuration.
        let absolute =
            |path: &String| std::path::absolute(path).map_or(path.clone(), |path| path.display().to_string());
        let workspace = self.workspace.as_ref().map(absolute);
        let flags = [
            (WORKSPACE, &workspace),
            ("daemon.prompt_deadline_ms", &self.prompt_deadline_ms),
            ("daemon.writer_idle_timeout_ms", &self.writer_idle_timeout_ms),
            ("daemon.replay_frames_max", &self.event_ring_size),
            ("daemon.sessions_max", &self.max_sessions),
            ("limits.connections_max", &self.max_connections),
            ("daemon.permission_timeout_ms", &self.permission_response_timeout_ms),
            ("mcp.client_budget", &self.mcp_client_budget),
            ("mcp.budget_mode", &self.mcp_budget_mode),
        ];
        let session_shell = self.enable_session_shell.then(|| ("daemon.session_shell", "true".to_owned()));
        flags.map(|(key, value)| Some((key, value.clone()?))).into_iter().flatten().chain(session_shell)
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct StoreArgs {
    /// The Postgres database to use instead of SQLite in the data directory [env: DATABASE_URL]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The configuration file and the overrides of these flags.
    pub(crate) fn overrides(&self, connection: &Connection) -> (Option<&Path>, Overrides) {
        let data_dir = connection.data_dir_flag().cloned();
        let removed_flag = || environment::current().text(environment::DATABASE_URL_FLAG);
        let database_url = self.database_url.clone().or_else(removed_flag).filter(|url| !url.is_empty());
        (self.config.as_deref(), Overrides { data_dir, database_url, ..Overrides::default() })
    }

    /// Loads the configuration from the file, the environment and the flags.
    pub(crate) fn load(&self, connection: &Connection) -> Result<Config, Failure> {
        let (file, overrides) = self.overrides(connection);
        Config::load(file, &environment::current(), overrides, &dialects().sections())
    }
}

impl ServerFlags {
    pub(crate) fn overrides(&self, connection: &Connection) -> (Option<&Path>, Overrides) {
        let (file, store_overrides) = self.store.overrides(connection);
        let overrides = Overrides {
            listen: self.listen.clone(),
            open_loopback: self.open_loopback,
            require_auth: self.require_auth,
            allow_origins: self.allow_origin.clone(),
            rate_limit: self.rate_limit,
            keys: self
                .mesh_issuer
                .iter()
                .map(|issuer| ("mesh.issuer", issuer.clone()))
                .chain(self.daemon.keys())
                .collect(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            unsafe_durability: self.unsafe_durability,
            ..store_overrides
        };
        (file, overrides)
    }
}

/// What this program speaks.
pub(crate) fn dialects() -> Dialects {
    Dialects::new([
        ostler_manager::dialect(),
        ostler_run_input::dialect(),
        ostler_mesh::dialect(),
        ostler_trust::dialect(),
        ostler_daemon::dialect(),
        ostler_mcp_server::dialect(),
    ])
}

/// The ready line.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadyLine {
    address: String,
    token_file: PathBuf,
}

/// The key of the directory that the server is bound to.
pub(crate) const WORKSPACE: &str = "server.workspace";

impl ServeArgs {
    /// The configuration file and the overrides of these flags.
    pub(crate) fn overrides(&self, connection: &Connection) -> (Option<&Path>, Overrides) {
        self.flags.overrides(connection)
    }

    /// The format of logs. `None`: the configured one.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        self.log_format.map(|format| match format {
            LogFormatFlag::Text => LogFormat::Text,
            LogFormatFlag::Json => LogFormat::Json,
        })
    }
}

pub(crate) async fn serve(connection: &Connection, args: &ServeArgs) -> Result<u8, Failure> {
    let (file, overrides) = args.overrides(connection);
    serve_with(file, overrides, args.log_format(), "run \"say hello\"").await
}

/// Runs the server until a signal stops it. `first_command` is suggested to a person who starts it at a terminal.
pub(crate) async fn serve_with(
    file: Option<&Path>,
    overrides: Overrides,
    log_format: Option<LogFormat>,
    first_command: &str,
) -> Result<u8, Failure> {
    // Registered before the server starts, so that no signal is missed.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::internal)?;
    let mut config = Config::load(file, &environment::current(), overrides, &dialects().sections())?;
    // The running version, even if another one has been installed over it.
    config.runner.guard = cfg!(target_os = "linux").then(|| "/proc/self/exe".into());
    config.server.source_commit = Some(env!("OSTLER_COMMIT").to_owned());
    log::init(log_format.unwrap_or(config.log.format))?;
    let server = tokio::select! {
        started = Server::new(config).with_dialects(dialects()).start() => started?,
        _ = interrupt.recv() => return Ok(exit_codes::OK),
        _ = terminate.recv() => return Ok(exit_codes::OK),
    };
    let address = format!("{}://{}", server.scheme(), server.address());
    output::data(&output::json_line(&ReadyLine {
        address: address.clone(),
        token_file: server.token_file().to_owned(),
    }));
    tracing::info!(address, version = env!("CARGO_PKG_VERSION"), store = server.engine(), "ready");
    if std::io::stderr().is_terminal() {
        output::message(&ready_hint(&address, server.token_file(), first_command));
    }
    #[cfg(target_os = "linux")]
    crate::program_pages::release();
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping; a second signal stops at once");
    tokio::select! {
        () = server.stop() => Ok(exit_codes::OK),
        _ = interrupt.recv() => Ok(exit_codes::LEFT),
        _ = terminate.recv() => Ok(exit_codes::LEFT),
    }
}

/// A command that reaches the server. The token file is in its data directory.
fn ready_hint(address: &str, token_file: &Path, first_command: &str) -> String {
    let invocation = invocation_of_server(address, token_file.parent().unwrap_or(token_file));
    format!("ready; try: {invocation} {first_command}\n")
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use ostler_server::config::DEFAULT_LISTEN;

    use super::*;

    #[test]
    fn the_help_names_the_default_address() {
        let help = ServeArgs::augment_args(clap::Command::new("serve")).render_long_help().to_string();
        assert!(help.matches(DEFAULT_LISTEN).count() >= 1, "{help}");
    }

    #[test]
    fn the_hint_names_a_data_directory_that_is_not_the_default() {
        let hint = ready_hint("http://127.0.0.1:9", Path::new("/my data/token"), "run \"say hello\"");
        assert_eq!(hint, "ready; try: ostler --server http://127.0.0.1:9 --data-dir '/my data' run \"say hello\"\n");
    }

    #[test]
    fn the_ready_line_is_one_json_object() {
        let ready = ReadyLine { address: "http://127.0.0.1:1".into(), token_file: "/d/token".into() };
        assert_eq!(output::json_line(&ready), "{\"address\":\"http://127.0.0.1:1\",\"tokenFile\":\"/d/token\"}\n");
    }
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        flags: DaemonFlags,
    }

    #[test]
    fn a_relative_workspace_is_resolved_from_the_current_directory() {
        let program = <Program as clap::Parser>::parse_from(["ostler", "--workspace", "app"]);
        let expected = std::env::current_dir().unwrap().join("app").display().to_string();
        assert_eq!(program.flags.keys().collect::<Vec<_>>(), [(WORKSPACE, expected)]);
        let help = <Program as clap::CommandFactory>::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("relative path") && !help.contains("an absolute path"), "{help}");
    }

    #[test]
    fn every_flag_for_editors_sets_its_key() {
        let line = "ostler --workspace /w --prompt-deadline-ms 1 --writer-idle-timeout-ms 2 --event-ring-size 3 \
            --max-sessions 4 --max-connections 5 --permission-response-timeout-ms 6 --enable-session-shell \
            --mcp-client-budget 7 --mcp-budget-mode enforce";
        let program = <Program as clap::Parser>::parse_from(line.split_whitespace());
        let overrides = Overrides { keys: program.flags.keys().collect(), ..Overrides::default() };
        let config = Config::load(None, &Default::default(), overrides, &dialects().sections()).unwrap();
        let section = config.section::<ostler_daemon::config::DaemonSection>();
        assert_eq!(config.server.workspace.as_deref(), Some(Path::new("/w")));
        assert_eq!((section.prompt_deadline_ms, section.writer_idle_timeout_ms), (Some(1), Some(2)));
        assert_eq!((section.replay_frames_max, section.sessions_max), (Some(3), 4));
        assert_eq!((config.limits.connections_max, section.permission_timeout_ms), (5, 6));
        assert!(section.session_shell);
        let mode = config.mcp.budget_mode.map(|mode| format!("{mode:?}"));
        assert_eq!((config.mcp.client_budget, mode.as_deref()), (Some(7), Some("Enforce")));
    }

    #[test]
    fn a_flag_that_cannot_work_is_rejected_by_its_key() {
        for (key, value, expected) in [
            ("daemon.prompt_deadline_ms", "0", "daemon.prompt_deadline_ms must be 1 to"),
            ("daemon.replay_frames_max", "1000001", "daemon.replay_frames_max must be 1 to"),
            ("daemon.sessions_max", "many", "daemon.sessions_max: must be a whole number"),
            ("limits.connections_max", "0", "limits.connections_max must be 1 to"),
        ] {
            let overrides = Overrides { keys: vec![(key, value.to_owned())], ..Overrides::default() };
            let failure = Config::load(None, &Default::default(), overrides, &dialects().sections()).unwrap_err();
            assert!(failure.message.contains(expected), "{}", failure.message);
        }
    }
}
