//! I/O errors on demand, for the torturer: the n-th read, write, sync, truncation or open of a SQLite file fails, as on a
//! failing or a full disk. Compiled only with the feature `fault-injection`, which no release has, and active only
//! where [`CONTROL_VARIABLE`] names a control file.
//!
//! The control file holds one order, `ID OPERATION NTH REPEAT CODE`: from the NTH operation of this kind on, REPEAT of
//! them fail with CODE (`ioerr` or `full`). A new ID is a new order; an empty file ends all faults. How many operations
//! have failed so far is written to the control file's name with `.fired` appended.

mod vfs;

use std::{
    ffi::c_int,
    path::PathBuf,
    sync::{Mutex, Once, PoisonError},
    thread,
    time::Duration,
};

use rusqlite::ffi;

const CONTROL_VARIABLE: &str = "OSTLER_FAULT_SQLITE_FILE";
const POLL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Open,
    Read,
    Write,
    Sync,
    Truncate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    operation: Operation,
    /// Operations of this kind that still succeed.
    passing: u64,
    /// Operations that then fail.
    failing: u64,
    is_full: bool,
}

#[derive(Default)]
struct State {
    order: Option<Order>,
    fired: u64,
    /// Where `fired` is written, at each fault: the process may end right after it.
    report: Option<PathBuf>,
}

static STATE: Mutex<State> = Mutex::new(State { order: None, fired: 0, report: None });

/// Makes the faulty file system SQLite's default, once per process, if a control file is named.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let Some(control) = std::env::var_os(CONTROL_VARIABLE).map(PathBuf::from) else { return };
        // Read once before the first file is opened, which may be the operation that fails.
        let mut report = control.clone().into_os_string();
        report.push(".fired");
        STATE.lock().unwrap_or_else(PoisonError::into_inner).report = Some(report.into());
        let mut watch = Watch { control, id: String::new() };
        watch.look();
        let control = watch.control.clone();
        let watching = thread::Builder::new().name("sqlite-faults".into()).spawn(move || {
            loop {
                thread::sleep(POLL);
                watch.look();
            }
        });
        if watching.is_ok() && vfs::register() {
            tracing::warn!(control = %control.display(), "SQLite operations fail on demand: this build is for tests");
        }
    });
}

/// Follows the control file.
struct Watch {
    control: PathBuf,
    id: String,
}

impl Watch {
    fn look(&mut self) {
        let text = std::fs::read_to_string(&self.control).unwrap_or_default();
        let (found, order) = text.trim().split_once(' ').unwrap_or_default();
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if found != self.id {
            self.id = found.to_owned();
            state.order = parse(order);
        }
    }
}

/// `None` if the order cannot be read: nothing fails then.
fn parse(order: &str) -> Option<Order> {
    let [operation, nth, repeat, code] = order.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let operation = match operation {
        "open" => Operation::Open,
        "read" => Operation::Read,
        "write" => Operation::Write,
        "sync" => Operation::Sync,
        "truncate" => Operation::Truncate,
        _ => return None,
    };
    let passing = nth.parse::<u64>().ok()?.checked_sub(1)?;
    Some(Order { operation, passing, failing: repeat.parse().ok()?, is_full: code == "full" })
}

/// The code that this operation fails with. `None` if it is carried out.
fn failure(operation: Operation) -> Option<c_int> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let order = state.order.as_mut().filter(|order| order.operation == operation && order.failing > 0)?;
    if order.passing > 0 {
        order.passing -= 1;
        return None;
    }
    order.failing -= 1;
    let is_full = order.is_full;
    state.fired += 1;
    if let Some(report) = &state.report {
        // Without it the torturer counts no fault, and fails.
        let _ = std::fs::write(report, state.fired.to_string());
    }
    Some(match operation {
        Operation::Write if is_full => ffi::SQLITE_FULL,
        Operation::Open => ffi::SQLITE_CANTOPEN,
        Operation::Read => ffi::SQLITE_IOERR_READ,
        Operation::Write => ffi::SQLITE_IOERR_WRITE,
        Operation::Sync => ffi::SQLITE_IOERR_FSYNC,
        Operation::Truncate => ffi::SQLITE_IOERR_TRUNCATE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(order: &str) {
        STATE.lock().unwrap().order = parse(order);
    }

    /// One test, because the state belongs to the process.
    #[test]
    fn the_nth_write_fails_and_the_database_goes_on_without_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(vfs::register());
        let connection = rusqlite::Connection::open(dir.path().join("test.db")).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (n)").unwrap();
        let insert = |n: i64| connection.execute("INSERT INTO t VALUES (?1)", [n]);
        for (order, code) in [
            ("write 2 1 ioerr", ffi::SQLITE_IOERR_WRITE),
            ("sync 1 1 ioerr", ffi::SQLITE_IOERR_FSYNC),
            ("write 1 1 full", ffi::SQLITE_FULL),
        ] {
            set(order);
            let before = STATE.lock().unwrap().fired;
            let error = insert(1).unwrap_err();
            let failed = matches!(&error, rusqlite::Error::SqliteFailure(e, _) if e.extended_code == code);
            assert!(failed, "{order}: {error:?}");
            assert_eq!(STATE.lock().unwrap().fired, before + 1);
            insert(2).unwrap();
        }
        let sum: (i64, i64) =
            connection.query_row("SELECT count(*), sum(n) FROM t", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(sum, (3, 6), "what failed is not there, what succeeded is");
        set("open 1 1 ioerr");
        assert!(rusqlite::Connection::open(dir.path().join("other.db")).is_err());
        set("nonsense");
        assert_eq!(parse("write 0 1 ioerr"), None);
    }
}
