//! `ostler migrate`: applies the migrations that a store lacks, offline. The server does the same when it starts; a roll-out of
//! several servers does it once, before the first of them starts.

use ostler_protocol::Failure;
use ostler_server::migrate::Migrated;
use serde_json::json;

use crate::{
    commands::serve::StoreArgs,
    connection::Connection,
    exit_codes,
    terminal::output::{Output, count},
};

/// Bring the schema of the store up to date
///
/// The server does this when it starts. Before a new version is rolled out on several servers, do it once. Servers of the
/// previous version that use the same Postgres keep running, unless the changelog says otherwise.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler migrate\n  ostler migrate --database-url postgres://ostler@localhost/ostler -o json"
)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn migrate(connection: &Connection, args: &MigrateArgs) -> Result<u8, Failure> {
    let migrated = ostler_server::migrate::migrate(&args.store.load(connection)?).await?;
    let value = json!({"engine": migrated.engine, "migrations": migrated.migrations});
    args.output.one(&value, || render(&migrated));
    Ok(exit_codes::OK)
}

fn render(migrated: &Migrated) -> String {
    let latest = migrated.migrations.last().map_or("none", String::as_str);
    let applied = count(migrated.migrations.len() as i64, "migration");
    format!("{}: {applied}, the latest is {latest}\n", migrated.engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_migration_is_named() {
        let migrated = Migrated { engine: "postgres", migrations: vec!["0001_a".into(), "0002_b".into()] };
        assert_eq!(render(&migrated), "postgres: 2 migrations, the latest is 0002_b\n");
    }
}
