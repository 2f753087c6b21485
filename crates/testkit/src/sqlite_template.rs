//! The template from which tests copy their SQLite stores: a copy takes a fraction of the time of the migrations. Nextest starts
//! a process per test, so the template is a file beside the test's program, and whichever process misses it makes it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use ostler_store::{Db, StoreConfig, migrate};
use sha2::{Digest, Sha256};

/// How often, and how many times, it is checked whether SQLite has closed the file of the template.
const CLOSING_PAUSE: Duration = Duration::from_millis(5);
const CLOSING_CHECKS_MAX: u32 = 400;

/// Makes this file a store with the schema of this build. Without a template it makes none: a server migrates a store that is
/// empty.
pub async fn copy_to(file: &Path) {
    let Some(template) = template() else { return };
    if !template.exists() && make(&template).await.is_none() {
        return;
    }
    let copied = std::fs::copy(&template, file);
    copied.unwrap_or_else(|error| panic!("cannot copy {}: {error}", template.display()));
}

/// A template is never changed, so its name contains the version of its migrations.
fn template() -> Option<PathBuf> {
    let mut digest = Sha256::new();
    for migration in migrate::SQLITE {
        digest.update(migration.id);
        digest.update(migration.sql);
    }
    digest.update(migrate::SQLITE_SCHEMA);
    digest.update(migrate::VOLATILE);
    let digest = digest.finalize().iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.join(format!("ostler-template-{digest}.db")))
}

/// Makes the template. It gets its name last, so that no process copies one that is half made.
async fn make(template: &Path) -> Option<()> {
    let directory = tempfile::tempdir_in(template.parent()?).ok()?;
    let file = directory.path().join("template.db");
    let config = StoreConfig::Sqlite { file: file.clone(), synchronous: Default::default() };
    Db::open(&config, Timestamp::UNIX_EPOCH).await.ok()?.close().await;
    // The last connection to close moves the log into the file, and removes it.
    let log = directory.path().join("template.db-wal");
    let mut checks = 0;
    while log.exists() {
        checks += 1;
        if checks > CLOSING_CHECKS_MAX {
            return None;
        }
        tokio::time::sleep(CLOSING_PAUSE).await;
    }
    std::fs::rename(&file, template).ok()
}
