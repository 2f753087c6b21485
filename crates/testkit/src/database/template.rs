//! The template from which tests clone their databases. A clone takes a tenth of the time of a migration. Nextest starts a
//! process per test, so the template lives in the cluster and whichever process misses it first makes it.

use jiff::Timestamp;
use ostler_store::{Db, StoreConfig, migrate};
use sha2::{Digest, Sha256};
use sqlx::{Connection, PgConnection};

use super::{Database, admin_url, block_on, connect, execute, sibling_url};

/// Processes that miss the template take turns at making it. Any number will do.
const TEMPLATE_LOCK: i64 = 0x7E_57;
/// What Postgres reports when the template does not exist.
const UNDEFINED_DATABASE: &str = "3D000";
/// Copying files is faster than writing the copy to the log, as long as a checkpoint is cheap. It is in a cluster whose
/// files are in memory.
const STRATEGY: &str = "FILE_COPY";

impl Database {
    /// A database with the schema of this build.
    pub fn migrated() -> Self {
        let database = Self::reserve(admin_url());
        block_on(async {
            let mut connection = connect(&database.admin_url).await;
            let cloned = clone_template(&mut connection, &database.admin_url, &database.name).await;
            cloned.unwrap_or_else(|error| panic!("cannot clone the template: {error}"));
            let _ = connection.close().await;
        });
        database
    }
}

/// A template is never changed, so its name contains the version of its migrations.
fn template_name() -> String {
    let mut digest = Sha256::new();
    for migration in migrate::POSTGRES {
        digest.update(migration.id);
        digest.update(migration.checksum());
    }
    let digest = digest.finalize().iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("ostler_template_{digest}")
}

async fn clone_template(connection: &mut PgConnection, admin_url: &str, name: &str) -> Result<(), sqlx::Error> {
    let template = template_name();
    let clone = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY {STRATEGY}");
    match execute(connection, &clone).await {
        Err(error) if is_undefined_database(&error) => {
            execute(connection, &format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})")).await?;
            make_template(connection, admin_url, &template).await?;
            execute(connection, &format!("SELECT pg_advisory_unlock({TEMPLATE_LOCK})")).await?;
            execute(connection, &clone).await
        }
        result => result,
    }
}

/// Makes the template, unless another process has. It gets its name last, so that no process clones one that is half made.
async fn make_template(connection: &mut PgConnection, admin_url: &str, template: &str) -> Result<(), sqlx::Error> {
    let existing = sqlx::query("SELECT 1 FROM pg_database WHERE datname = $1").bind(template);
    if existing.fetch_optional(&mut *connection).await?.is_some() {
        return Ok(());
    }
    let unfinished = format!("{template}_unfinished");
    execute(connection, &format!("DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)")).await?;
    execute(connection, &format!("CREATE DATABASE {unfinished}")).await?;
    let config = StoreConfig::Postgres { url: sibling_url(admin_url, &unfinished) };
    let db = Db::open(&config, Timestamp::UNIX_EPOCH).await;
    db.unwrap_or_else(|error| panic!("cannot migrate the template: {error}")).close().await;
    // A connection to a template would keep others from cloning it.
    execute(connection, &format!("ALTER DATABASE {unfinished} ALLOW_CONNECTIONS false")).await?;
    execute(connection, &format!("ALTER DATABASE {unfinished} RENAME TO {template}")).await
}

fn is_undefined_database(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == UNDEFINED_DATABASE)
}
