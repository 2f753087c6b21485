//! The two engines of the store, and how a test runs on each of them.

#[cfg(feature = "engines")]
pub use ostler_testkit_macros::{both_engines, one_engine};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    pub const BOTH: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

#[cfg(feature = "engines")]
const WORKER_THREADS: usize = 4;

/// Runs an asynchronous test. Tasks that are left when it returns are not waited for.
#[cfg(feature = "engines")]
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let runtime = runtime.expect("a runtime can be started");
    runtime.block_on(test);
    runtime.shutdown_background();
}
