//! A private Postgres cluster for tests and benchmarks. It finds or installs the server's programs; the cluster itself
//! is in `ostler-testkit`.

use std::path::PathBuf;

use ostler_testkit::postgres::{Cluster, find_binaries};

use crate::debian;
use crate::process::{in_workspace, interrupted, run};

pub const URL_VARIABLE: &str = "OSTLER_TEST_POSTGRES_URL";

/// `cargo xtask postgres -- CMD…`
pub fn run_with_cluster(arguments: &[String]) -> Result<(), String> {
    let (program, rest) =
        arguments.split_first().ok_or("no command was given\nhint: `cargo xtask postgres -- CMD…`")?;
    let cluster = start()?;
    eprintln!("==> {URL_VARIABLE}={}", cluster.url());
    run(in_workspace(program)?.args(rest).env(URL_VARIABLE, cluster.url()).current_dir(current_dir()?))
}

/// Starts a cluster. Call this on the main thread: the server ends with the thread that started it.
pub fn start() -> Result<Cluster, String> {
    let cluster = Cluster::start(&find_or_install_binaries()?)?;
    interrupted()?;
    Ok(cluster)
}

fn current_dir() -> Result<PathBuf, String> {
    std::env::current_dir().map_err(|e| format!("the current directory does not exist: {e}"))
}

pub fn find_or_install_binaries() -> Result<PathBuf, String> {
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
