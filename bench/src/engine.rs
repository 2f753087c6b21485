//! The two engines, each with a scratch place of its own for every measurement.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ostler_testkit::database::Database;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::outcome::Outcome;
use crate::server::Server;

pub(crate) use ostler_testkit::engine::Engine;

/// How many rows a store of the growth test has.
#[derive(Clone, Copy)]
pub(crate) struct GrowthSize {
    /// Of one session.
    pub events: usize,
    /// Sessions, runs, agents, relations, webhooks, tokens, users, identities, automations and calendar events.
    pub items: usize,
}

const fn growth(events: usize, items: usize) -> GrowthSize {
    GrowthSize { events, items }
}

/// How much the store of the scale test has, and its load.
#[derive(Clone, Copy)]
pub(crate) struct ScaleSize {
    pub sessions: usize,
    pub runners: usize,
    pub followers: usize,
    pub seconds: u64,
}

/// How much is measured on a cluster.
#[derive(Clone, Copy)]
pub(crate) struct KubernetesSize {
    /// Pairs of slices.
    pub rounds: usize,
    /// Requests in a slice.
    pub requests: usize,
    /// Jobs that are observed to their end.
    pub jobs: usize,
}

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub append_rounds: usize,
    pub append_batches_per_connection: usize,
    pub run_rounds: usize,
    pub runs_per_client: usize,
    pub result_rounds: usize,
    pub results_per_round: usize,
    pub starts: usize,
    pub follow_events: usize,
    pub replay_events: usize,
    pub lists: usize,
    pub mesh_rounds: usize,
    pub sends_per_sender: usize,
    pub growth: [GrowthSize; 3],
    pub growth_calls: usize,
    pub soak_s: u64,
    pub scale: ScaleSize,
    pub kubernetes: KubernetesSize,
}

const FULL: Sizes = Sizes {
    append_rounds: 7,
    append_batches_per_connection: 64,
    run_rounds: 7,
    runs_per_client: 100,
    result_rounds: 8,
    results_per_round: 2_000,
    starts: 9,
    follow_events: 400,
    replay_events: 3_000,
    lists: 500,
    mesh_rounds: 7,
    sends_per_sender: 300,
    growth: [growth(100, 100), growth(10_000, 10_000), growth(1_000_000, 100_000)],
    growth_calls: 200,
    soak_s: 15 * 60,
    scale: ScaleSize { sessions: 100_000, runners: 1_000, followers: 1_000, seconds: 60 },
    kubernetes: KubernetesSize { rounds: 20, requests: 8, jobs: 500 },
};

const QUICK: Sizes = Sizes {
    append_rounds: 3,
    append_batches_per_connection: 32,
    run_rounds: 3,
    runs_per_client: 50,
    result_rounds: 4,
    results_per_round: 1_000,
    starts: 5,
    follow_events: 100,
    replay_events: 1_000,
    lists: 200,
    mesh_rounds: 3,
    sends_per_sender: 200,
    growth: [growth(100, 100), growth(1_000, 1_000), growth(10_000, 10_000)],
    growth_calls: 50,
    soak_s: 60,
    scale: ScaleSize { sessions: 5_000, runners: 200, followers: 200, seconds: 10 },
    kubernetes: KubernetesSize { rounds: 6, requests: 6, jobs: 100 },
};

pub(crate) struct Bench {
    ostler: PathBuf,
    postgres_url: String,
    pub sizes: Sizes,
    made: AtomicU32,
    /// Dropped after the last measurement: dropping a database makes Postgres write a checkpoint.
    databases: Mutex<Vec<Database>>,
    scratch: TempDir,
}

/// A store of either engine that no other server uses.
pub(crate) struct Place {
    pub engine: Engine,
    pub data_dir: PathBuf,
    /// Only for Postgres.
    pub database_url: Option<String>,
}

impl Bench {
    pub(crate) fn new(ostler: PathBuf, postgres_url: String, quick: bool) -> Outcome<Self> {
        let scratch = tempfile::Builder::new().prefix("ostler-bench-").tempdir()?;
        let sizes = if quick { QUICK } else { FULL };
        Ok(Self { ostler, postgres_url, sizes, made: AtomicU32::new(0), databases: Mutex::default(), scratch })
    }

    pub(crate) fn ostler(&self) -> &Path {
        &self.ostler
    }

    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// An empty directory, and an empty database where the engine needs one.
    pub(crate) fn place(&self, engine: Engine) -> Outcome<Place> {
        let place = self.directory(engine);
        let Engine::Postgres = engine else { return Ok(place) };
        let database = Database::empty_at(&self.postgres_url);
        let database_url = Some(database.url().to_owned());
        self.databases.lock().map_err(|error| error.to_string())?.push(database);
        Ok(Place { database_url, ..place })
    }

    /// A place for SQLite, which needs a directory only.
    pub(crate) fn directory(&self, engine: Engine) -> Place {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let data_dir = self.scratch.path().join(format!("{}-{number}", engine.name()));
        Place { engine, data_dir, database_url: None }
    }

    /// The same store for another server.
    pub(crate) fn same_store(&self, place: &Place) -> Place {
        Place { database_url: place.database_url.clone(), ..self.directory(place.engine) }
    }

    /// Starts a server on the place and waits until it is ready.
    pub(crate) fn serve(&self, place: &Place) -> Outcome<Server> {
        self.serve_with(place, &[])
    }

    /// The same, with settings from the environment.
    pub(crate) fn serve_with(&self, place: &Place, settings: &[(&str, &str)]) -> Outcome<Server> {
        Server::start(&self.ostler, place, settings)
    }

    /// The process that all of Postgres's others descend from.
    pub(crate) async fn postmaster(&self) -> Outcome<u32> {
        let mut connection = PgConnection::connect(&self.postgres_url).await?;
        let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        let parent = crate::machine::parent_of(u32::try_from(backend)?)?;
        connection.close().await?;
        Ok(parent)
    }
}
