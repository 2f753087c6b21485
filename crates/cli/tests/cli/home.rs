//! A place for servers to live in: a data directory, and on Postgres a database of its own that is dropped with it.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ostler_testkit::{database::Database, scratch};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use crate::process::{Guarded, Server, eventually, ostler};

pub use ostler_testkit::engine::{Engine, both_engines};

pub struct Home {
    scratch: TempDir,
    pub data_dir: PathBuf,
    database: Option<Database>,
    /// Given to every process; a later value of the same name wins.
    pub environment: Vec<(String, String)>,
    pub flags: Vec<String>,
}

impl Home {
    /// With its files in memory.
    pub fn new(engine: Engine) -> Self {
        Self::with(scratch::in_memory(), (engine == Engine::Postgres).then(Database::migrated))
    }

    /// For tests about durability, kills or confinement: agents may use `/dev`, which is where memory is.
    pub fn on_disk(engine: Engine) -> Self {
        Self::with(scratch::on_disk(), (engine == Engine::Postgres).then(Database::migrated))
    }

    /// [`Home::on_disk`], with a database that the first server migrates. SQLite's file is always made by the first server.
    pub fn with_empty_database(engine: Engine) -> Self {
        Self::with(scratch::on_disk(), (engine == Engine::Postgres).then(Database::empty))
    }

    fn with(scratch: TempDir, database: Option<Database>) -> Self {
        let data_dir = scratch.path().join("data");
        let mut home = Self { scratch, data_dir, database: None, environment: vec![], flags: vec![] };
        if let Some(database) = database {
            home.set("DATABASE_URL", database.url());
            home.database = Some(database);
        }
        home
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    /// Without a resident runner: the test plays it.
    pub fn without_runner(mut self) -> Self {
        self.set("OSTLER_RUNNER__SLOTS", "0");
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub fn database_url(&self) -> &str {
        self.database.as_ref().unwrap().url()
    }

    /// What the servers of this home wrote to stderr, all together.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    pub fn serve(&self) -> Server {
        self.try_serve().unwrap_or_else(|status| panic!("{status}: {}", self.log()))
    }

    /// `Err`: it did not start; the log says why.
    pub fn try_serve(&self) -> Result<Server, std::process::ExitStatus> {
        self.start("127.0.0.1:0")
    }

    /// A server where another one was: those who follow find it again.
    pub fn serve_at(&self, address: &str) -> Server {
        // Somebody else on this machine may have been given the port meanwhile.
        const PORT_TAKEN: i32 = 5;
        eventually("the port is free again", || match self.start(address) {
            Err(status) if status.code() == Some(PORT_TAKEN) => None,
            started => Some(started.unwrap_or_else(|status| panic!("{status}; the log says:\n{}", self.log()))),
        })
    }

    fn start(&self, address: &str) -> Result<Server, std::process::ExitStatus> {
        Server::start(self.serve_command(address))
    }

    /// A server that nobody waits for.
    pub fn spawn_serve(&self) -> Guarded {
        Guarded(self.serve_command("127.0.0.1:0").spawn().unwrap())
    }

    fn serve_command(&self, address: &str) -> Command {
        let log = File::options().create(true).append(true).open(self.path("server.log")).unwrap();
        let mut command = self.command(&["serve", "--listen", address]);
        command.args(&self.flags).stderr(log);
        command
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = ostler(args);
        command
            .current_dir(self.scratch.path())
            .arg("--data-dir")
            .arg(&self.data_dir)
            .envs(self.environment.iter().map(|(k, v)| (k, v)));
        command
    }

    /// Runs one of the other verbs, against the server if one is given.
    pub fn cli(&self, server: Option<&Server>, args: &[&str]) -> Output {
        let mut command = self.command(args);
        if let Some(server) = server {
            command.env("OSTLER_SERVER", server.url());
        }
        command.output().unwrap()
    }

    /// `ostler verify`: exit code and what it said.
    pub fn verify(&self) -> (i32, String) {
        let output = self.cli(None, &["verify"]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(said).unwrap())
    }

    #[track_caller]
    pub fn assert_verified(&self) {
        let (code, said) = self.verify();
        assert_eq!(code, 0, "{said}");
    }

    /// One statement straight to the store, past the server.
    pub fn execute(&self, sql: &str) {
        match &self.database {
            Some(database) => execute(database.url(), sql),
            None => {
                rusqlite::Connection::open(self.data_dir.join("ostler.db")).unwrap().execute_batch(sql).unwrap();
            }
        }
    }

    /// Every row of every table as text, and on SQLite the raw bytes of its files.
    pub fn everything_stored(&self) -> String {
        match &self.database {
            Some(database) => dump(database.url()),
            None => {
                let files = ["ostler.db", "ostler.db-wal"].map(|name| self.data_dir.join(name));
                let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
                files.iter().map(|path| String::from_utf8_lossy(&read(path)).into_owned()).collect()
            }
        }
    }
}

fn execute(url: &str, sql: &str) {
    block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Every row of every table, as text.
fn dump(url: &str) -> String {
    block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let tables: Vec<String> = sqlx::query_scalar("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert!(tables.len() > 5, "{tables:?}");
        let mut dump = String::new();
        for table in tables {
            let sql = format!("SELECT t::text FROM {table} t");
            let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap();
            dump.push_str(&format!("{table}\n{}\n", rows.join("\n")));
        }
        dump
    })
}

/// Whether `path` is open to its owner only, with exactly this mode.
pub fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
