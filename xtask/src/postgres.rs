//! A private Postgres cluster for tests and benchmarks. It finds or installs the server's programs; the cluster itself
//! is in `ostler-testkit`. Tests use one in memory, where a sync costs nothing; benchmarks measure the disk.

use std::path::{Path, PathBuf};

use ostler_testkit::postgres::{Cluster, find_binaries};
use ostler_testkit::scratch;

use crate::debian;
use crate::process::{in_workspace, interrupted, run};

pub(crate) const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

/// `cargo xtask postgres -- CMD…`
pub(crate) fn run_with_cluster(arguments: &[String]) -> Result<(), String> {
    let (program, rest) =
        arguments.split_first().ok_or("no command was given\nhint: `cargo xtask postgres -- CMD…`")?;
    let cluster = start_in_memory()?;
    eprintln!("==> {URL_VARIABLE}={}", cluster.url());
    run(in_workspace(program)?.args(rest).env(URL_VARIABLE, cluster.url()).current_dir(current_dir()?))
}

/// Starts a cluster on disk. Call this on the main thread: the server ends with the thread that started it.
pub(crate) fn start_on_disk() -> Result<Cluster, String> {
    start_in(&std::env::temp_dir())
}

/// [`start_on_disk`], with the cluster's files in memory if there is room.
pub(crate) fn start_in_memory() -> Result<Cluster, String> {
    start_in(&scratch::memory_root())
}

fn start_in(directory: &Path) -> Result<Cluster, String> {
    let cluster = Cluster::start_in(&find_or_install_binaries()?, directory)?;
    interrupted()?;
    Ok(cluster)
}

fn current_dir() -> Result<PathBuf, String> {
    std::env::current_dir().map_err(|e| format!("the current directory does not exist: {e}"))
}

pub(crate) fn find_or_install_binaries() -> Result<PathBuf, String> {
    if let Some(binaries) = find_binaries() {
        return Ok(binaries);
    }
    debian::install("postgresql", INSTALL_SCRIPT).map_err(|reason| {
        format!(
            "the tests need a Postgres server, and none can be had: {reason}\n\
             hint: install one (on Debian: `apt-get install postgresql`), or put its `bin` directory on PATH"
        )
    })?;
    find_binaries().ok_or_else(|| "Debian's postgresql is installed, but its server was not found".into())
}

/// Debian would create a cluster and start it. This drop-in, which exists only during the installation, prevents that.
const INSTALL_SCRIPT: &str = "\
set -eu
drop_in=/etc/postgresql-common/createcluster.d/ostler-no-cluster.conf
mkdir -p \"$(dirname \"$drop_in\")\"
trap 'rm -f \"$drop_in\"' EXIT
echo 'create_main_cluster = false' > \"$drop_in\"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends postgresql
";
