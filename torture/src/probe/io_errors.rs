//! The n-th I/O operation of SQLite fails: a read, a write, a sync, a truncation, an open; or a few writes find no room.
//! The server does it to itself, by the feature `fault-injection`.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::{Disk, Probe, SQLITE};
use crate::{
    report::Fault,
    round::{Round, Setup},
    server_host::ServerHost,
};

const ERRORS: u64 = 18;
const FIRE_LOOKS_MAX: usize = 100;
const FIRE_POLL: Duration = Duration::from_millis(3);
pub(crate) const CONTROL: &str = "faults";
pub(crate) const VARIABLE: &str = "OSTLER_FAULT_SQLITE_FILE";
/// Writes and syncs come with every flush, reads only where the cache lacks a page; an open is rare.
const OPERATIONS: [(&str, u64, &str); 6] = [
    ("write", 12, "ioerr"),
    ("write", 40, "ioerr"),
    ("sync", 4, "ioerr"),
    ("sync", 12, "ioerr"),
    ("write", 12, "full"),
    ("read", 6, "ioerr"),
];

const STARTS_PERCENT: u64 = 35;
/// What a start does: it opens a handful of files and reads the schema.
const AT_START: [(&str, u64); 4] = [("open", 8), ("read", 40), ("write", 6), ("sync", 4)];

pub(crate) const PROBE: Probe = Probe {
    name: "io-errors",
    about: "the n-th read, write or sync of SQLite's files fails, by a file system of SQLite's that fails on demand",
    engines: SQLITE,
    rounds: 6,
    disk: Disk::Shared,
    fault: Some(Fault::IoError),
    // The file is read by name in the server's own directory, which is the round's.
    setup: |_, _| Setup { environment: vec![(VARIABLE, CONTROL.into())], ..Setup::default() },
    disturb: fail,
};

fn fail(round: &mut Round) -> Result<(), String> {
    let mut total = if round.random.chance(STARTS_PERCENT) { fail_at_start(round)? } else { 0 };
    for id in 1..=ERRORS {
        round.let_work(5..50);
        let (operation, nth_max, code) = *round.random.pick(&OPERATIONS);
        let nth = round.random.between(1..nth_max + 1);
        let repeat = if round.random.chance(20) { round.random.between(2..6) } else { 1 };
        order(&round.host, &format!("{id} {operation} {nth} {repeat} {code}"))?;
        for _ in 0..FIRE_LOOKS_MAX {
            if fired(&round.host.path(CONTROL)) >= total + repeat {
                break;
            }
            thread::sleep(FIRE_POLL);
        }
        order(&round.host, "")?;
        round.wait_for_progress()?;
        let now_fired = fired(&round.host.path(CONTROL));
        round.tally.count(Fault::IoError, now_fired.saturating_sub(total));
        total = now_fired;
    }
    Ok(())
}

/// Kills the server and starts it on a disk that fails: it may refuse to start, and must start on a good one. Returns
/// how many operations of the process that runs now have failed.
fn fail_at_start(round: &mut Round) -> Result<u64, String> {
    let (operation, nth_max) = *round.random.pick(&AT_START);
    let nth = round.random.between(1..nth_max + 1);
    round.let_work(30..150);
    round.kill_server(0);
    round.count(Fault::ServerKill);
    let control = round.host.path(CONTROL);
    forget_fired(&control);
    order(&round.host, &format!("start {operation} {nth} 1 ioerr"))?;
    let started = round.start_server(0);
    order(&round.host, "")?;
    thread::sleep(FIRE_POLL);
    let failed = fired(&control);
    round.tally.count(Fault::IoError, failed);
    if started.is_ok() {
        return Ok(failed);
    }
    forget_fired(&control);
    round.start_server(0)?;
    Ok(0)
}

/// Fails if the program was built without `fault-injection`: every injected fault would then silently do nothing.
pub(crate) fn check_seams(ostler: &Path) -> Result<(), String> {
    let mut host = ServerHost::new(ostler)?;
    host.set(VARIABLE, CONTROL);
    order(&host, "check open 1 1 ioerr")?;
    // Whether the server starts in spite of the error does not matter here.
    drop(host.serve(0, "127.0.0.1:0"));
    match fired(&host.path(CONTROL)) {
        0 => Err(format!(
            "{} injects no faults\nhint: build it with the feature `fault-injection`, as `cargo xtask torture` does",
            ostler.display()
        )),
        _ => Ok(()),
    }
}

/// Replaces the control file at once, so that the server never reads half of it.
pub(crate) fn order(host: &ServerHost, text: &str) -> Result<(), String> {
    let (new, control) = (host.path("faults.new"), host.path(CONTROL));
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &control));
    written.map_err(|error| format!("cannot write the control file: {error}"))
}

fn report_file(control: &Path) -> PathBuf {
    control.with_extension("fired")
}

fn fired(control: &Path) -> u64 {
    std::fs::read_to_string(report_file(control)).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn forget_fired(control: &Path) {
    // Nothing is there if nothing has failed.
    let _ = std::fs::remove_file(report_file(control));
}
