//! A running server: opens the store, checks its durability, listens, and stops without losing work.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use ostler_protocol::{Failure, FailureKind, Rule, redaction::Redactor};
use ostler_store::{Db, StoreConfig, StoreError, StoreFault, lane::Lanes};
use secrecy::ExposeSecret;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{
    app::{App, LaneHost, Parts, Stage},
    auth::{Authenticator, Issuers, operator_token, signing_key, token_of_variable},
    bound_workspace,
    clock::{Clock, Ids, ServerClock},
    config::{Config, address_of},
    dialect::{Dialect, Dialects, Opening},
    directories,
    hub::Hub,
    launcher::{self, HeldJobs, ResidentPlaces, isolation},
    mcp::Mcp,
    metrics::Metrics,
    net::{self as http, listener, tls},
    restore_marker,
    secrets::SecretStore,
    service,
    startup::not_started,
    tools::{SettlingCommands, StartLocks, Toolkit},
    traces::Traces,
    worker::{self, wakeups::Pending},
};

/// How long each part of the server gets to finish when the server stops.
const STOP: Duration = Duration::from_secs(10);

/// A server that has not started: its configuration and the dialects that it will speak.
pub struct Server {
    config: Config,
    clock: Arc<dyn Clock>,
    dialects: Dialects,
}

impl Server {
    pub fn new(config: Config) -> Self {
        Self { config, clock: Arc::new(ServerClock::default()), dialects: Dialects::default() }
    }

    #[must_use]
    pub fn with(mut self, dialect: Dialect) -> Self {
        self.dialects = self.dialects.with(dialect);
        self
    }

    #[must_use]
    pub fn with_dialects(self, dialects: Dialects) -> Self {
        Self { dialects, ..self }
    }

    /// Uses another clock than the machine's.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    pub async fn start(self) -> Result<RunningServer, Failure> {
        let Self { mut config, clock, dialects } = self;
        // A runner elsewhere brings the credential of its provider.
        config.policy.credential_free_profiles.extend(config.runner.external_profiles.iter().cloned());
        let data_dir = config.data_dir()?;
        directories::make(&data_dir).map_err(|failure| {
            not_started(Rule::DataDir, no_data_dir(&data_dir, &failure.cause.unwrap_or_default()))
        })?;
        restore_marker::check(&data_dir)?;
        config.server.workspace = bound_workspace::find(&config, &data_dir)?;
        config.server.data_dir = Some(data_dir.clone());
        let (token, token_file) = operator_token(&data_dir)?;
        let mut operator = vec![token];
        for variable in dialects.iter().filter_map(|dialect| dialect.operator_token) {
            operator.extend(token_of_variable(variable, config.environment.text(variable))?);
        }
        let store = config.store()?;
        let db = Db::open(&store, clock.now()).await.map_err(|error| not_opened(error, &store))?;
        let db = match config.read_replica() {
            Some(replica) => db.with_replica(&replica).map_err(|error| not_started(Rule::Store, error))?,
            None => db,
        };
        worker::clock::anchor(&db, &*clock).await?;
        check_durability(&db, &config).await?;
        let secrets = SecretStore::open(&config).await?;
        let (signing_key, signing) = signing_key(&data_dir)?;
        let issuers = Issuers::new(signing_key, &config.auth.issuers)?;
        service::users::record_key(&db, &issuers, clock.now())
            .await
            .map_err(|error| not_started(Rule::Store, error))?;
        service::backends::record(&db).await.map_err(|error| not_started(Rule::Store, error))?;
        let (tls, tls_certificate) = tls::acceptor(&config)?.unzip();
        let listener =
            TcpListener::bind(&config.server.listen).await.map_err(|error| not_bound(&config.server.listen, &error))?;
        let address = listener.local_addr().map_err(|error| not_started(Rule::Listen, error))?;
        check_open(&config, address)?;
        config.server.listen = address.to_string();
        let opening = || Opening { db: db.clone(), config: config.clone(), wall: clock.wall() };
        let states = dialects.open(opening).await?;
        let hub = Arc::new(Hub::default());
        let others = db.multi_replica().then(Arc::<Pending>::default);
        let metrics = Arc::<Metrics>::default();
        let held_jobs = HeldJobs::default();
        let places = Arc::new(ResidentPlaces::new(held_jobs.clone(), Ids::new(clock.clone())));
        let host = LaneHost {
            clock: clock.clone(),
            hub: hub.clone(),
            others: others.clone(),
            metrics: metrics.clone(),
            places: places.clone(),
        };
        let lanes = Lanes::start(&db, Arc::new(host)).await.map_err(|error| not_started(Rule::Store, error))?;
        let database_url =
            config.store.database_url.as_ref().map(|url| url.expose_secret().to_owned()).unwrap_or_default();
        let [written, read] = passwords_of(&database_url);
        let replica_url = config.read_replica().map(|replica| replica.url).unwrap_or_default();
        let [replica_written, replica_read] = passwords_of(&replica_url);
        let sealing = SecretStore::key_text(&config)?;
        let password = config.environment.text("PGPASSWORD").unwrap_or_default();
        let mut own = vec![&written, &read, password.as_str(), sealing.expose_secret(), signing.expose_secret()];
        own.extend([replica_written.as_str(), &replica_read]);
        own.extend(operator.iter().map(|token| token.expose_secret()));
        let redactor = Redactor::new(&own);
        let (traces, spans) = Traces::new(config.log.otlp_endpoint.as_deref());
        let (stage, reached) = watch::channel(Stage::Serving);
        let auth = Authenticator::new(&operator, issuers, dialects.tokens());
        let toolkit = Toolkit::new(&config, &dialects);
        let states = states.with(Mcp::new(&config.mcp)).with(toolkit).with(dialects);
        let states = states.with(StartLocks::default()).with(SettlingCommands::default());
        #[cfg(feature = "kubernetes")]
        let states = states
            .with(crate::kubernetes::KubernetesState::open(&config).await?)
            .with(launcher::ref_lookups::RefLookups::default());
        let parts = Parts {
            db,
            lanes,
            hub,
            clock,
            config,
            redactor,
            auth,
            secrets,
            states,
            metrics,
            traces,
            others: others.clone(),
            places: (held_jobs, places),
            tls_certificate,
            stage: reached,
        };
        let app = App::new(parts);
        isolation::start(&app);
        service::health::read_settings(&app).await.map_err(|error| not_started(Rule::Store, error))?;
        service::provider_profiles::learn_all(&app).await?;
        worker::sweeper::recover(&app).await?;
        let router = http::router(app.clone());
        let mut tasks = spawn(&app, (listener, tls), router.clone(), others);
        if let (Some(endpoint), Some(spans)) = (app.config.log.otlp_endpoint.clone(), spans) {
            tasks.push(tokio::spawn(worker::traces::run(app.clone(), endpoint, spans)));
        }
        let launcher = tokio::spawn(launcher::run(app.clone(), router));
        Ok(RunningServer { address, token_file, app, stage, launcher, tasks })
    }
}

pub struct RunningServer {
    address: SocketAddr,
    token_file: PathBuf,
    app: App,
    stage: watch::Sender<Stage>,
    launcher: JoinHandle<()>,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn token_file(&self) -> &Path {
        &self.token_file
    }

    /// `https` if the listener uses TLS.
    pub fn scheme(&self) -> &'static str {
        self.app.config.scheme()
    }

    /// The engine of the store: `sqlite` or `postgres`.
    pub fn engine(&self) -> &'static str {
        self.app.db.engine_name()
    }

    /// Drains, then stops. Draining ends streams and long polls, rejects new work and lets runners finish their turns; the
    /// server still responds to requests, because the runners need it. Stopping hands over unfinished work, lets open requests
    /// finish and closes the store.
    pub async fn stop(mut self) {
        let _ = self.stage.send(Stage::Draining);
        let grace = Duration::from_millis(self.app.config.server.drain_ms);
        let drained = tokio::time::timeout(grace, &mut self.launcher).await.is_ok();
        let _ = self.stage.send(Stage::Stopping);
        if !drained {
            tracing::warn!("runners were still at work when the server stopped; their work is handed on");
            self.tasks.push(self.launcher);
        }
        for task in self.tasks {
            let abort = task.abort_handle();
            if tokio::time::timeout(STOP, task).await.is_err() {
                abort.abort();
            }
        }
        self.app.db.close().await;
    }
}

fn spawn(
    app: &App,
    (listener, tls): (TcpListener, Option<TlsAcceptor>),
    router: Router,
    others: Option<Arc<Pending>>,
) -> Vec<JoinHandle<()>> {
    let serving = tokio::spawn(listener::serve(app.clone(), listener, tls, router));
    let mut tasks = vec![
        serving,
        tokio::spawn(worker::clock::run(app.clone())),
        tokio::spawn(worker::sweeper::run(app.clone())),
        tokio::spawn(worker::housekeeping::run(app.clone())),
        tokio::spawn(worker::retention::run(app.clone())),
    ];
    let workers = Dialects::of(app).iter().flat_map(|dialect| &dialect.workers);
    tasks.extend(workers.map(|work| tokio::spawn(work(app.clone()))));
    if let Some(others) = others {
        tasks.push(tokio::spawn(worker::wakeups::run(app.clone(), others)));
    }
    tasks
}

/// Without tokens, every client that can connect may run agents, so the address must be a loopback address.
fn check_open(config: &Config, address: SocketAddr) -> Result<(), Failure> {
    if !config.server.open_loopback {
        return Ok(());
    }
    if !address.ip().is_loopback() {
        let message = format!("open-loopback is for loopback addresses; this server would listen on {address}");
        return Err(Failure::invalid(Rule::OpenLoopback, message));
    }
    tracing::warn!(%address, "open-loopback: every user of this machine may run agents here without a token");
    Ok(())
}

async fn check_durability(db: &Db, config: &Config) -> Result<(), Failure> {
    let weak = db.durability().await.map_err(|error| not_started(Rule::Store, error))?.weak_settings;
    if weak.is_empty() {
        return Ok(());
    }
    if config.store.unsafe_durability {
        tracing::warn!(?weak, "acknowledged writes can be lost in a power cut, as --unsafe-durability allows");
        return Ok(());
    }
    let message = format!(
        "the store would lose answered writes in a power cut ({}); --unsafe-durability allows it",
        weak.join(", ")
    );
    Err(not_started(Rule::WeakDurability, message))
}

/// The password in a connection string, as written and percent-decoded.
fn passwords_of(url: &str) -> [String; 2] {
    let authority = url.split_once("://").map_or("", |(_, rest)| rest);
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let written = user.split_once(':').map_or("", |(_, password)| password);
    let read = percent_encoding::percent_decode_str(written).decode_utf8_lossy();
    [written.to_owned(), read.into_owned()]
}

/// With less free space than this, SQLite cannot even open its files.
const OPEN_BYTES_MIN: u64 = 256 * 1024;

/// The failure to open the store. A store that another process holds is reported as in use. A full disk is reported as such,
/// because SQLite only reports that some operation failed.
pub fn not_opened(error: StoreError, store: &StoreConfig) -> Failure {
    if let StoreConfig::Sqlite { file, .. } = store {
        let is_full = match StoreFault::of(&error) {
            Some(StoreFault::DiskFull) => true,
            Some(StoreFault::DiskFailed) => free_bytes(file).is_some_and(|free| free < OPEN_BYTES_MIN),
            _ => false,
        };
        if is_full {
            let message = format!("cannot open the store at {}: the disk is full ({error})", file.display());
            return not_started(Rule::StoreDiskFull, message);
        }
    }
    if let (StoreConfig::Postgres { url }, Some(fault)) = (store, StoreFault::of(&error)) {
        let address = address_of(url);
        let (rule, what) = match fault {
            StoreFault::Unreachable if error.is_refused() => {
                (Rule::StoreUnreachable, "refuses connections; is it running?".to_owned())
            }
            StoreFault::Unreachable => (Rule::StoreUnreachable, format!("cannot be reached: {error}")),
            StoreFault::Denied => (Rule::StoreDenied, format!("rejects the user or the password: {error}")),
            StoreFault::Silent => (Rule::StoreSilent, "accepts connections and sends nothing".to_owned()),
            StoreFault::Starting => (Rule::StoreStarting, "is starting or stopping".to_owned()),
            StoreFault::NoFreeConnection => (Rule::StoreNoFreeConnection, "has no free connection".to_owned()),
            _ => (Rule::Store, format!("cannot be used: {error}")),
        };
        return not_started(rule, format!("Postgres at {address} {what}"));
    }
    if let StoreError::Migration(reason) = error {
        return not_started(Rule::StoreVersion, format!("cannot open the store: {reason}"));
    }
    let kind = match error {
        StoreError::Locked(_) => FailureKind::StateConflict,
        _ => FailureKind::InfraFailed,
    };
    not_started(Rule::Store, error).with_kind(kind)
}

fn no_data_dir(data_dir: &Path, cause: &str) -> String {
    match data_dir.is_file() {
        true => format!("the data directory {} is a file; name a directory", data_dir.display()),
        false => format!("cannot make the data directory {cause}"),
    }
}

/// The free space of the disk that the file is on.
fn free_bytes(file: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(file.parent()?).ok()?;
    Some(space.f_bavail.saturating_mul(space.f_frsize))
}

/// The failure to listen: the address is in use, or is not an address.
fn not_bound(listen: &str, error: &std::io::Error) -> Failure {
    let kind = match error.kind() {
        ErrorKind::AddrInUse => FailureKind::StateConflict,
        ErrorKind::InvalidInput => FailureKind::SchemaInvalid,
        _ => FailureKind::InfraFailed,
    };
    let message = match kind {
        FailureKind::StateConflict => format!("another program uses the address {listen}"),
        _ => format!("cannot listen on {listen}: {error}"),
    };
    not_started(Rule::Listen, message).with_kind(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_when_the_store_cannot_be_opened() {
        let store = StoreConfig::Sqlite { file: "/nowhere/ostler.db".into(), synchronous: Default::default() };
        let full = || StoreError::Io(ErrorKind::StorageFull.into());
        let failure = not_opened(full(), &store);
        assert_eq!(failure.rule_name(), Some("store-disk-full"));
        assert!(failure.message.contains("/nowhere/ostler.db: the disk is full"), "{failure:?}");
        // Postgres reports itself what it lacks.
        let postgres = StoreConfig::Postgres { url: String::new() };
        assert_eq!(not_opened(full(), &postgres).rule_name(), Some("store"));
        let refused = || StoreError::Postgres(sqlx::Error::Io(ErrorKind::ConnectionRefused.into()));
        let postgres = StoreConfig::Postgres { url: "postgres://me:pl4nted@127.0.0.1:1/x".into() };
        let failure = not_opened(refused(), &postgres);
        assert_eq!(failure.rule_name(), Some("store-unreachable"));
        assert_eq!(failure.message, "Postgres at 127.0.0.1:1 refuses connections; is it running?");
        let postgres = StoreConfig::Postgres { url: "postgres://me:pl4nted@h1:1,h2/x".into() };
        let failure = not_opened(refused(), &postgres);
        assert_eq!(failure.message, "Postgres at h1:1, h2:5432 refuses connections; is it running?");
        let broken = StoreError::Io(ErrorKind::PermissionDenied.into());
        assert_eq!(not_opened(broken, &store).rule_name(), Some("store"));
    }

    #[test]
    fn a_store_that_a_newer_release_has_changed_is_reported_as_such() {
        for store in [
            StoreConfig::Sqlite { file: "/nowhere/ostler.db".into(), synchronous: Default::default() },
            StoreConfig::Postgres { url: String::new() },
        ] {
            let failure = not_opened(StoreError::Migration("a newer release has changed it".into()), &store);
            assert_eq!(failure.rule_name(), Some("store-version"));
        }
    }

    #[test]
    fn a_password_is_redacted_as_written_and_as_decoded() {
        let [written, read] = passwords_of("postgres://me:p%40ss%2Fw%C3%B6rd@db.example/x?a=b");
        assert_eq!((written.as_str(), read.as_str()), ("p%40ss%2Fw%C3%B6rd", "p@ss/wörd"));
        let redactor = Redactor::new(&[&written, &read]);
        assert_eq!(redactor.redact("either p@ss/wörd or p%40ss%2Fw%C3%B6rd"), "either [redacted] or [redacted]");
        assert_eq!(passwords_of("postgres://db.example/x"), ["", ""]);
    }
}
