//! The cluster survives what the tests do to it.

#![expect(clippy::expect_used, reason = "a test program: a failed expectation is a failed test")]

use std::process::Command;

use ostler_testkit::postgres::{Cluster, find_binaries};

fn query(cluster: &Cluster, sql: &str) -> Option<String> {
    let mut psql = Command::new(cluster.program("psql").expect("psql comes with the server"));
    psql.args(["--no-psqlrc", "-tA", "-c", sql, &cluster.url()]).env("PGCONNECT_TIMEOUT", "2");
    let output = psql.output().expect("psql runs");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn committed_rows_survive_a_restart_and_a_kill() {
    let mut cluster = Cluster::start(&find_binaries().expect("Postgres is installed")).unwrap();
    query(&cluster, "CREATE TABLE numbers (n INT)").unwrap();
    query(&cluster, "INSERT INTO numbers VALUES (1)").unwrap();
    cluster.restart().unwrap();
    query(&cluster, "INSERT INTO numbers VALUES (2)").unwrap();
    cluster.kill().unwrap();
    assert_eq!(query(&cluster, "SELECT 1"), None, "a killed server answers no query");
    cluster.start_again().unwrap();
    assert_eq!(query(&cluster, "SELECT SUM(n) FROM numbers").as_deref(), Some("3"));
}

#[test]
fn a_paused_server_answers_only_after_it_was_resumed() {
    let cluster = Cluster::start(&find_binaries().expect("Postgres is installed")).unwrap();
    cluster.pause().unwrap();
    assert_eq!(query(&cluster, "SELECT 1"), None);
    cluster.resume();
    assert_eq!(query(&cluster, "SELECT 1").as_deref(), Some("1"));
}

#[test]
fn a_standby_that_is_promoted_has_every_row_that_was_committed() {
    let mut primary = Cluster::start(&find_binaries().expect("Postgres is installed")).unwrap();
    let standby = primary.standby().unwrap();
    primary.commit_to_standby().unwrap();
    primary.execute("CREATE TABLE numbers (n INT)").unwrap();
    primary.execute("INSERT INTO numbers VALUES (1), (2)").unwrap();
    assert!(standby.execute("INSERT INTO numbers VALUES (3)").is_err(), "a standby takes no writes");
    primary.kill().unwrap();
    standby.promote().unwrap();
    standby.execute("INSERT INTO numbers VALUES (3)").unwrap();
    assert_eq!(standby.execute("SELECT SUM(n) FROM numbers").as_deref(), Ok("6"));
}
