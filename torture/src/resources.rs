//! What an engine's campaign uses from its first round to its last: the program, the threads of the load, and on Postgres
//! the private cluster with a proxy in front of it for each server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_testkit::{
    loop_mount::LoopMount,
    postgres::{Cluster, find_binaries},
    proxy::Proxy,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Servers that share one Postgres, at most.
pub(crate) const REPLICAS_MAX: usize = 2;
const LOAD_THREADS: usize = 2;
const POWER_IMAGE_BYTES: u64 = 640 * 1024 * 1024;
const TRIED_IMAGE_BYTES: u64 = 8 * 1024 * 1024;
const SQL_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// How large the probes are that are about size.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub followers: usize,
    pub memory_for: Duration,
}

impl Scale {
    /// In an hour there is time for ten minutes of appends; in a test run there is not.
    pub(crate) fn of(minutes: f64) -> Self {
        match minutes {
            30.0.. => Self { followers: 2_000, memory_for: Duration::from_secs(600) },
            _ => Self { followers: 400, memory_for: Duration::from_secs(8) },
        }
    }
}

pub(crate) struct CampaignResources {
    pub engine: Engine,
    pub ostler: PathBuf,
    pub scale: Scale,
    pub postgres: Option<Postgres>,
    /// A cluster on a file system of its own, started when the first power cut needs it.
    pub power: Option<Power>,
    pub runtime: Runtime,
    /// Whether file systems of our own can be mounted; why not.
    pub mounts: Result<(), String>,
    databases: u64,
}

pub(crate) struct Postgres {
    pub cluster: Cluster,
    /// One per server.
    pub proxies: Vec<Proxy>,
}

pub(crate) struct Power {
    pub cluster: Cluster,
    /// `None` only while it is exchanged for its copy.
    pub disk: Option<LoopMount>,
    pub cuts: u64,
    // Dropped last: the image is in it.
    pub scratch: TempDir,
}

impl CampaignResources {
    /// Call this on a thread that outlives the campaign: Postgres ends with the thread that started it.
    pub(crate) fn set(engine: Engine, ostler: &Path, scale: Scale) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(LOAD_THREADS).enable_all().build();
        let postgres = match engine {
            Engine::Sqlite => None,
            Engine::Postgres => Some(Postgres::start()?),
        };
        Ok(Self {
            engine,
            ostler: ostler.to_owned(),
            scale,
            postgres,
            power: None,
            runtime: runtime.map_err(|error| format!("no threads: {error}"))?,
            mounts: try_mount(),
            databases: 0,
        })
    }

    /// Creates a database in this cluster. Returns its name.
    pub(crate) fn create_database(&mut self, cluster_url: &str) -> Result<String, String> {
        self.databases += 1;
        let name = format!("torture_{}", self.databases);
        self.execute(cluster_url, &format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    pub(crate) fn drop_database(&self, cluster_url: &str, name: &str) -> Result<(), String> {
        self.execute(cluster_url, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
    }

    pub(crate) fn execute(&self, url: &str, sql: &str) -> Result<(), String> {
        let work = async {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
            connection.close().await
        };
        let done = self.runtime.block_on(async { tokio::time::timeout(SQL_TIMEOUT, work).await });
        done.map_err(|_| format!("{sql}: no answer"))?.map_err(|error| format!("{sql}: {error}"))
    }

    /// The cluster whose disk can lose power. Fails where loop mounts are not available.
    pub(crate) fn power(&mut self) -> Result<&mut Power, String> {
        if self.power.is_none() {
            self.power = Some(Power::start()?);
        }
        self.power.as_mut().ok_or_else(|| "no cluster".to_owned())
    }
}

fn binaries() -> Result<PathBuf, String> {
    find_binaries()
        .ok_or_else(|| "there is no Postgres server\nhint: `cargo xtask postgres -- true` installs one".into())
}

impl Postgres {
    fn start() -> Result<Self, String> {
        let cluster = Cluster::start(&binaries()?)?;
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.port()));
        let proxies: Result<Vec<_>, _> = (0..REPLICAS_MAX).map(|_| Proxy::start(target)).collect();
        Ok(Self { cluster, proxies: proxies.map_err(|error| format!("no proxy: {error}"))? })
    }

    /// Ends every fault, whatever state a round left behind.
    pub(crate) fn heal(&mut self) -> Result<(), String> {
        self.proxies.iter().for_each(Proxy::heal);
        self.cluster.resume();
        // Fails while it runs, which is as well.
        let _ = self.cluster.start_again();
        Ok(())
    }
}

impl Power {
    fn start() -> Result<Self, String> {
        let scratch = tempfile::Builder::new().prefix("ostler-torture-power-").tempdir();
        let scratch = scratch.map_err(|error| format!("no scratch directory: {error}"))?;
        // Postgres runs under another account when we are root, and must be able to enter.
        open_to_all(scratch.path())?;
        let disk =
            LoopMount::create(&scratch.path().join("disk-0.img"), POWER_IMAGE_BYTES, &scratch.path().join("disk"))?;
        open_to_all(&disk.dir)?;
        let cluster = Cluster::start_in(&binaries()?, &disk.dir)?;
        // The files of the empty cluster are created without a sync.
        disk.sync()?;
        Ok(Self { cluster, disk: Some(disk), cuts: 0, scratch })
    }
}

fn try_mount() -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|error| error.to_string())?;
    LoopMount::create(&scratch.path().join("disk.img"), TRIED_IMAGE_BYTES, &scratch.path().join("disk")).map(drop)
}

fn open_to_all(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(path, mode).map_err(|error| format!("{}: {error}", path.display()))
}
