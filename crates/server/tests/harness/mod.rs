//! A server for each test: on port 0, with a scratch store in memory and a clock that does not move until the test moves it.

mod caller;
mod database;
mod dialects;
mod document;
mod identity;
mod issuer;
mod manual_runner;
mod pausable_proxy;
mod receiver;
mod socket;
mod statements;
mod stream;

use std::{
    collections::HashMap,
    ops::Deref,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use ostler_mesh::config::MeshSection;
use ostler_protocol::{
    Timestamp,
    ids::TokenId,
    json::hex,
    tokens::{ServiceToken, TokenRole},
};
use ostler_server::{
    Config, RunningServer, Server,
    app::App,
    clock::{Clock, SystemClock, fill},
    dialect::{Dialect, Dialects},
};
use ostler_store::{Db, StoreConfig, tokens};
use ostler_testkit::{scratch, sqlite_template};
use ostler_trust::config::WebhooksSection;
use serde_json::json;
use tempfile::TempDir;

pub(crate) use caller::{Answer, Caller, PNG, WAV, id, of_program, run_body};
pub(crate) use database::query;
pub(crate) use dialects::{dialects, openapi, start};
pub(crate) use document::check_request;
pub(crate) use identity::{Identity, Tokens, Wire, fresh, introduction};
pub(crate) use issuer::{Issuer, Key, signed_by};
pub(crate) use manual_runner::{ManualRunner, ask_body};
pub(crate) use ostler_testkit::{
    database::Database,
    engine::{Engine, both_engines, one_engine, run},
};
pub(crate) use pausable_proxy::PausableProxy;
pub(crate) use receiver::{Behaviour, HookReceiver, Request};
pub(crate) use socket::Socket;
pub(crate) use statements::{Recorder, SentStatement};
pub(crate) use stream::Follow;

/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Short, because tests wait for sweeps. At 20 ms they were 40 % of all statements of tests on Postgres.
const SWEEP_INTERVAL_MS: u64 = 50;

/// The profile that every test's server leaves to runners elsewhere.
pub(crate) const EXTERNAL: &str = "elsewhere";

/// A clock that only a test moves.
pub(crate) struct TestClock {
    now_us: AtomicI64,
}

/// 2026-01-01T00:00:00Z.
const BEGINNING_US: i64 = 1_767_225_600_000_000;

impl Default for TestClock {
    fn default() -> Self {
        Self { now_us: AtomicI64::new(BEGINNING_US) }
    }
}

impl TestClock {
    pub(crate) fn advance_ms(&self, ms: i64) {
        self.now_us.fetch_add(ms * 1_000, Ordering::SeqCst);
    }

    /// Lets the clock run with the machine's, for as long as the server that goes by it.
    pub(crate) fn run(self: &Arc<Self>) {
        let (clock, mut known) = (Arc::downgrade(self), tokio::time::Instant::now());
        tokio::spawn(async move {
            while let Some(clock) = clock.upgrade() {
                let passed = known.elapsed();
                known += passed;
                clock.now_us.fetch_add(passed.as_micros() as i64, Ordering::SeqCst);
                drop(clock);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// To so many days before the time of this machine, which programs that we did not write go by.
    pub(crate) fn catch_up(&self, days_behind: i64) {
        let machine_us = SystemClock.now().as_microsecond();
        self.now_us.store(machine_us - days_behind * 86_400_000_000, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.now_us.load(Ordering::SeqCst)).unwrap()
    }
}

/// What a test may choose before its server starts.
pub(crate) struct Setup {
    pub config: Config,
    pub dialects: Dialects,
    /// The server's clock, if it is not the one that the test moves.
    pub clock: Option<Arc<dyn Clock>>,
    tokens: Vec<(String, String, Vec<String>)>,
}

impl Setup {
    /// A service token; `TestServer::caller` knows it by its name.
    pub(crate) fn token(&mut self, name: &str, role: &str, tenants: &[&str]) {
        let tenants = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        self.tokens.push((name.to_owned(), role.to_owned(), tenants));
    }

    /// Binds the server to an empty directory beside its data directory, and returns it.
    pub(crate) fn bind_workspace(&mut self) -> PathBuf {
        let data_dir = self.config.server.data_dir.as_ref().unwrap();
        let workspace = data_dir.with_file_name("workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        self.config.server.workspace = Some(workspace.clone());
        workspace.canonicalize().unwrap()
    }
}

/// Fields go in this order: the server first, then what it depends on.
pub(crate) struct TestServer {
    operator: Caller,
    callers: HashMap<String, Caller>,
    server: Option<RunningServer>,
    pub clock: Arc<TestClock>,
    own_clock: Option<Arc<dyn Clock>>,
    pub config: Config,
    dialects: Dialects,
    _database: Option<Database>,
    _data_dir: TempDir,
}

impl Deref for TestServer {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.operator
    }
}

impl TestServer {
    /// Without a runner: the test plays the runner itself.
    pub(crate) async fn start(engine: Engine) -> Self {
        Self::with(engine, |_| ()).await
    }

    /// With the resident runner.
    pub(crate) async fn with_runner(engine: Engine) -> Self {
        Self::with(engine, |setup| setup.config.runner.slots = 64).await
    }

    pub(crate) async fn with(engine: Engine, choose: impl FnOnce(&mut Setup)) -> Self {
        let data_dir = scratch::in_memory();
        let database = match engine {
            Engine::Sqlite => None,
            Engine::Postgres => Some(Database::migrated()),
        };
        let mut setup = Setup { config: Config::default(), dialects: dialects(), clock: None, tokens: vec![] };
        setup.config.server.listen = "127.0.0.1:0".into();
        setup.config.server.data_dir = Some(data_dir.path().join("data"));
        setup.config.store.database_url = database.as_ref().map(|database| database.url().into());
        setup.config.runner.slots = 0;
        setup.config.runner.external_profiles = vec![EXTERNAL.into()];
        setup.config.runner.sweep_interval_ms = SWEEP_INTERVAL_MS;
        // Programs start slowly while other tests run.
        setup.config.mcp.list_wait_ms = 10_000;
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = true);
        choose(&mut setup);
        let clock = Arc::new(TestClock::default());
        let Setup { config, dialects, clock: own_clock, tokens } = setup;
        std::fs::create_dir(data_dir.path().join("data")).unwrap();
        // A directory that the test has chosen stays as the test has made it.
        let store = config.store().ok();
        if let Some(StoreConfig::Sqlite { file, .. }) = store.filter(|_| engine == Engine::Sqlite)
            && file.starts_with(data_dir.path())
        {
            sqlite_template::copy_to(&file).await;
        }
        if !tokens.is_empty() {
            insert_tokens(&config, &tokens, clock.now()).await;
        }
        let server_clock = own_clock.clone().unwrap_or_else(|| clock.clone());
        let server = Self::start_server(&config, &dialects, server_clock).await;
        let operator = Caller::new(&server);
        let callers =
            tokens.into_iter().map(|(name, ..)| (name.clone(), operator.with_token(Some(&token_of(&name))))).collect();
        let server = Some(server);
        Self { operator, callers, server, clock, own_clock, config, dialects, _database: database, _data_dir: data_dir }
    }

    /// As [`TestServer::with`], and the server's state for calls inside the process.
    pub(crate) async fn with_app(engine: Engine, choose: impl FnOnce(&mut Setup)) -> (Self, App) {
        let found = Arc::<Mutex<Option<App>>>::default();
        let probe = found.clone();
        let server = Self::with(engine, |setup| {
            choose(setup);
            setup.dialects = std::mem::take(&mut setup.dialects).with(Dialect::new("probe").worker(move |app| {
                *probe.lock().unwrap() = Some(app);
                std::future::ready(())
            }));
        })
        .await;
        let app = eventually("the worker runs", async || found.lock().unwrap().take()).await;
        (server, app)
    }

    async fn start_server(config: &Config, dialects: &Dialects, clock: Arc<dyn Clock>) -> RunningServer {
        Server::new(config.clone()).with_dialects(dialects.clone()).with_clock(clock).start().await.unwrap()
    }

    /// Another server on the same store and clock, with the same operator.
    pub(crate) async fn start_another(&self, choose: impl FnOnce(&mut Config)) -> Self {
        self.start_another_with(self.own_clock.clone(), choose).await
    }

    /// As [`TestServer::start_another`], with a clock of its own.
    pub(crate) async fn start_another_with(
        &self,
        own_clock: Option<Arc<dyn Clock>>,
        choose: impl FnOnce(&mut Config),
    ) -> Self {
        let data_dir = scratch::in_memory();
        let mut config = self.config.clone();
        config.server.data_dir = Some(data_dir.path().to_owned());
        std::fs::copy(self.server.as_ref().unwrap().token_file(), data_dir.path().join("token")).unwrap();
        choose(&mut config);
        let clock = self.clock.clone();
        let server_clock = own_clock.clone().unwrap_or_else(|| clock.clone());
        let server = Self::start_server(&config, &self.dialects, server_clock).await;
        let operator = Caller::new(&server);
        let callers = self.callers.keys().map(|name| (name.clone(), operator.with_token(Some(&token_of(name)))));
        let callers = callers.collect();
        // A wake-up that is sent before the other server listens is lost.
        eventually("both servers listen", async || {
            let listening =
                "SELECT 'x' FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
            (self.store(listening).await.len() >= 2).then_some(())
        })
        .await;
        let server = Some(server);
        let dialects = self.dialects.clone();
        Self { operator, callers, server, clock, own_clock, config, dialects, _database: None, _data_dir: data_dir }
    }

    /// Another server on the same store that certifies the same names.
    pub(crate) async fn of_one_mesh(&self) -> Self {
        let data_dir = self.config.server.data_dir.clone().unwrap();
        let keys = |config: &mut Config| {
            config.change(|mesh: &mut MeshSection| mesh.pki_directory = Some(data_dir.join("pki")));
            config.secrets.key_file = Some(data_dir.join("secrets-key"));
        };
        self.start_another(keys).await
    }

    /// The caller with the service token of this name.
    pub(crate) fn caller(&self, name: &str) -> &Caller {
        &self.callers[name]
    }

    /// Stops the server and starts it again on the same store.
    pub(crate) async fn restart(&mut self) {
        self.restart_after(async |_| ()).await;
    }

    /// As [`TestServer::restart`], with something to do while no server has the store open.
    pub(crate) async fn restart_after(&mut self, work: impl AsyncFnOnce(&Config)) {
        self.server.take().unwrap().stop().await;
        work(&self.config).await;
        let clock = self.own_clock.clone().unwrap_or_else(|| self.clock.clone());
        let server = Self::start_server(&self.config, &self.dialects, clock).await;
        self.operator = Caller::new(&server);
        self.server = Some(server);
    }

    /// The operator's token, to look for in places where it must not stand.
    pub(crate) fn operator_token(&self) -> String {
        let file = self.server.as_ref().unwrap().token_file();
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// Reads a column of text from the store, or changes it, behind the server's back.
    pub(crate) async fn store(&self, sql: &str) -> Vec<String> {
        database::query(&self.config, sql).await
    }

    /// Another client's connection to the server's Postgres.
    pub(crate) async fn connection(&self) -> sqlx::PgConnection {
        let url = self.config.store.database_url.as_ref().expect("the store is Postgres");
        <sqlx::PgConnection as sqlx::Connection>::connect(secrecy::ExposeSecret::expose_secret(url)).await.unwrap()
    }

    /// An agent of the operator's that asks for `notes:read`: its id and its manifest's hash.
    pub(crate) async fn agent(&self) -> (String, String) {
        let scope = json!({"id": "notes:read", "label_i18n_key": "a.b", "label_fallback": "Read notes",
            "description_fallback": "Your notes.", "sensitivity": "low"});
        let manifest = json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [],
            "permission_scopes": [scope]});
        let made = self.post("/agents", &json!({"name": "notes-helper", "capability_manifest": manifest})).await;
        let made = made.with_status(201);
        (id(&made, "id"), id(&made, "capability_manifest_hash"))
    }

    /// Every file of the data directory, with its bytes.
    pub(crate) fn everything_kept(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let (mut files, mut left) = (vec![], vec![self.config.server.data_dir.clone().unwrap()]);
        while let Some(path) = left.pop() {
            match path.is_dir() {
                true => left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path())),
                false => files.push((path.clone(), std::fs::read(&path).unwrap())),
            }
        }
        files
    }

    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.server.as_ref().unwrap().address()
    }
}

pub(crate) fn token_of(name: &str) -> String {
    format!("ost_svc_{name}_0123456789abcdef0123456789abcdef")
}

/// Before the server starts, because a SQLite store has one process and one owner.
async fn insert_tokens(config: &Config, wanted: &[(String, String, Vec<String>)], now: Timestamp) {
    let db = Db::open(&config.store().unwrap(), now).await.unwrap();
    for (name, role, tenants) in wanted {
        let mut body = [0; 16];
        fill(&mut body);
        let token = ServiceToken {
            token_id: TokenId::new(uuid::Uuid::from_bytes(body)),
            name: name.clone(),
            role: TokenRole::parse(role).unwrap(),
            tenants: tenants.clone(),
            created_at: now,
            expires_at: None,
            revoked_at: None,
        };
        let hash = hex(&ostler_crypto::sha256(token_of(name).as_bytes()));
        tokens::insert(&db, &token, &hash, None).await.unwrap();
    }
    db.close().await;
}

/// Asks again until there is an answer. What never comes fails the test.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < until, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
