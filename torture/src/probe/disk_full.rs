//! A full disk under SQLite or under Postgres: a real one, of a file system in an image file that is filled to its last block.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use serde_json::json;

use super::{Disk, POSTGRES, Probe, SQLITE, io_errors};
use crate::{
    api::Reply,
    clock::{now, since},
    report::Fault,
    round::{Round, Setup},
};

const IMAGE_BYTES: u64 = 28 * 1024 * 1024;
const FILLINGS: usize = 2;
const FULL_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);
const TITLE_CHARS: usize = 100;
const BALLAST: &str = "ballast";
const WRITES_FOR_EVER: u64 = 1_000_000_000;

pub(crate) const PROBE: Probe = Probe {
    name: "disk-full",
    about: "the file system of the store is filled to its last block, and emptied again",
    engines: SQLITE,
    rounds: 2,
    disk: Disk::OwnIfPossible,
    fault: Some(Fault::DiskFull),
    setup: |_, _| Setup {
        image_bytes: IMAGE_BYTES,
        environment: vec![(io_errors::VARIABLE, io_errors::CONTROL.into())],
        ..Setup::default()
    },
    disturb: fill_up,
};

pub(crate) const POSTGRES_PROBE: Probe = Probe {
    name: "fill-postgres",
    about: "the file system of Postgres is filled to its last block, and emptied again",
    engines: POSTGRES,
    rounds: 2,
    disk: Disk::Own,
    fault: Some(Fault::DiskFull),
    setup: |_, _| Setup::default(),
    disturb: fill_up_postgres,
};

fn fill_up(round: &mut Round) -> Result<(), String> {
    let ballast = round.disk.as_ref().map(|disk| disk.dir.join(BALLAST));
    for _ in 0..FILLINGS {
        round.let_work(50..300);
        match &ballast {
            Some(ballast) => fill(ballast)?,
            // Without a file system of its own, the VFS reports every write as `SQLITE_FULL`.
            None => io_errors::order(&round.host, &format!("1 write 1 {WRITES_FOR_EVER} full"))?,
        }
        wait_until_full(round)?;
        round.count(Fault::DiskFull);
        round.let_work(100..700);
        match &ballast {
            Some(ballast) => remove(ballast)?,
            None => io_errors::order(&round.host, "")?,
        }
        round.wait_for_progress()?;
    }
    Ok(())
}

fn fill_up_postgres(round: &mut Round) -> Result<(), String> {
    let ballast = round.resources.power()?.disk.as_ref().ok_or("the cluster has no disk")?.dir.join(BALLAST);
    for _ in 0..FILLINGS {
        round.let_work(50..300);
        let filled = fill(&ballast).and_then(|()| wait_until_full(round));
        if filled.as_ref().is_ok_and(|is_full| *is_full) {
            round.count(Fault::DiskFull);
            round.let_work(100..700);
        }
        // The cluster serves later rounds too.
        remove(&ballast)?;
        revive_postgres(round)?;
        filled?;
        round.wait_for_progress()?;
    }
    Ok(())
}

/// Waits until Postgres takes connections. It ends by itself if it could not write its log, and has to be started again.
fn revive_postgres(round: &mut Round) -> Result<(), String> {
    let started = now();
    loop {
        if has_postgres_ended(round) {
            let cluster = &mut round.resources.power()?.cluster;
            cluster.kill()?;
            cluster.start_again()?;
        }
        let url = round.resources.power()?.cluster.url();
        match round.resources.execute(&url, "SELECT 1") {
            Ok(()) => return Ok(()),
            Err(why) if since(started) > FULL_WITHIN => {
                return Err(format!("Postgres did not recover from a full disk: {why}"));
            }
            Err(_) => thread::sleep(POLL),
        }
    }
}

fn has_postgres_ended(round: &mut Round) -> bool {
    round.resources.power.as_mut().is_some_and(|power| power.cluster.has_ended())
}

/// Writes until the server refuses a write because the disk is full. The store's files have some room left in themselves,
/// which the load uses up first. `false` if Postgres ended before a write was refused.
fn wait_until_full(round: &mut Round) -> Result<bool, String> {
    let started = now();
    for number in 0.. {
        let body = json!({"tenantId": "local", "backendProfile": "scripted", "storageKind": "none",
            "sessionId": format!("fill-{}-{number}", round.tally.of(Fault::DiskFull)), "title": "x".repeat(TITLE_CHARS)});
        let call = round.server_apis[0].call("POST", "/api/v1/sessions", Some(&body));
        match round.resources.runtime.block_on(call) {
            Reply::Lost(why) if why.starts_with("503") && why.contains("store-disk-full") => return Ok(true),
            Reply::Refused(status, body) => return Err(format!("a write to a full disk was refused: {status} {body}")),
            _ if crate::interrupt::is_interrupted() => return Err("interrupted".into()),
            _ if has_postgres_ended(round) => return Ok(false),
            _ if since(started) > FULL_WITHIN => break,
            _ => {}
        }
    }
    Err(format!("no write was refused with store-disk-full within {FULL_WITHIN:?} of filling the disk"))
}

/// Allocates blocks until none is left. Most of them are not written, because an image file would have to hold them.
fn fill(path: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the ballast cannot be created: {error}");
    let mut file = File::create(path).map_err(failed)?;
    for size in [16 * 1024 * 1024, 1024 * 1024] {
        let mut end = file.metadata().map_err(failed)?.len();
        while fallocate(&file, FallocateFlags::empty(), end, size).is_ok() {
            end += size;
        }
    }
    file.seek(SeekFrom::End(0)).map_err(failed)?;
    for size in [64 * 1024, 4096, 512] {
        let block = vec![7; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
    Ok(())
}

fn remove(ballast: &Path) -> Result<(), String> {
    std::fs::remove_file(ballast).map_err(|error| format!("the ballast cannot be removed: {error}"))
}
