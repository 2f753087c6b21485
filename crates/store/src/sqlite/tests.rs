//! A full disk, and who can read the store's files.

use std::time::Duration;

use super::*;
use crate::error::StoreFault;

/// A write that is held up until the sender sends, so that everything after it falls into one flush.
async fn held_up(sqlite: &Arc<Sqlite>) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let (begun, has_begun) = oneshot::channel();
    let sqlite = sqlite.clone();
    let held = tokio::spawn(async move {
        let work = move |_: &Connection| {
            let _ = begun.send(());
            wait.recv().expect("the test lets it go on");
            Ok(())
        };
        sqlite.plain(work).await.expect("it writes nothing");
    });
    has_begun.await.expect("the lane runs");
    (go_on, held)
}

fn note(connection: &Connection, id: i64, bytes: usize) -> Result<(), StoreError> {
    connection.execute("INSERT INTO notes (id, text) VALUES (?1, ?2)", (id, "x".repeat(bytes)))?;
    Ok(())
}

fn stored(connection: &Connection) -> Result<Vec<i64>, StoreError> {
    query(connection, "SELECT id FROM notes ORDER BY id", &[], |row| row.int())
}

/// SQLite gives up the whole transaction when a statement finds the disk full. What came after it in the same flush
/// used to be written, each by itself, and answered as failed.
#[tokio::test]
async fn a_full_disk_fails_the_whole_flush_and_nothing_of_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&dir.path().join("store.db"), Synchronous::Full, Timestamp::UNIX_EPOCH).unwrap();
    let sqlite = Arc::new(sqlite);
    let limit = |pages: &str| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        sqlite.plain(move |connection| Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))?))
    };
    sqlite.plain(|c| Ok(c.execute_batch("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)")?)).await.unwrap();
    limit("1").await.unwrap();
    assert!(sqlite.health.fault().is_none());

    let (go_on, held) = held_up(&sqlite).await;
    let writes = [(1, 10), (2, 1_000_000), (3, 10)].map(|(id, bytes)| {
        let sqlite = sqlite.clone();
        tokio::spawn(async move { sqlite.plain(move |connection| note(connection, id, bytes)).await })
    });
    // They are queued before the lane takes them up together.
    tokio::time::sleep(Duration::from_millis(100)).await;
    go_on.send(()).unwrap();
    held.await.unwrap();
    for write in writes {
        let error = write.await.unwrap().unwrap_err();
        assert_eq!(StoreFault::of(&error), Some(StoreFault::DiskFull), "{error}");
    }
    assert_eq!(sqlite.plain(stored).await.unwrap(), Vec::<i64>::new());
    assert_eq!(sqlite.health.fault(), Some(StoreFault::DiskFull));

    limit("1000000").await.unwrap();
    sqlite.plain(|connection| note(connection, 4, 1_000_000)).await.unwrap();
    assert_eq!(sqlite.plain(stored).await.unwrap(), [4]);
    tokio::task::spawn_blocking(move || sqlite.close()).await.unwrap();
}

#[test]
fn other_users_cannot_read_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let (new, old) = (dir.path().join("new.db"), dir.path().join("old.db"));
    File::create(&old).and_then(|file| file.set_permissions(Permissions::from_mode(0o644))).expect("a file");
    for path in [new, old] {
        make_private(&path).expect("made private");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_lock_that_cannot_be_written_is_named() {
    // Nothing can be created there, not even by root.
    let error = lock(Path::new("/proc/ostler.db")).unwrap_err().to_string();
    assert!(error.contains("cannot write /proc/ostler.lock") && error.contains("second process"), "{error}");
}
