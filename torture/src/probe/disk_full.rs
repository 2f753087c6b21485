//! A full disk under SQLite: a real one, of a file system in an image file that is filled to its last block. Postgres
//! has its own disk; what it does when that is full is Postgres's affair, and looks to the server like its other faults.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{Disk, Probe, SQLITE, io_errors};
use crate::{
    api::Reply,
    clock::{now, since},
    report::Fault,
    round::{Round, Setup},
};

const IMAGE_BYTES: u64 = 28 * 1024 * 1024;
const FILLINGS: usize = 2;
const FULL_WITHIN: Duration = Duration::from_secs(30);
const TITLE_CHARS: usize = 100;
const WRITES_FOR_EVER: u64 = 1_000_000_000;

pub const PROBE: Probe = Probe {
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

fn fill_up(round: &mut Round) -> Result<(), String> {
    let ballast = round.disk.as_ref().map(|disk| disk.dir.join("ballast"));
    for _ in 0..FILLINGS {
        round.let_work(50..300);
        match &ballast {
            Some(ballast) => fill(ballast),
            // Without a file system of its own, the VFS reports every write as `SQLITE_FULL`.
            None => io_errors::order(&round.home, &format!("1 write 1 {WRITES_FOR_EVER} full"))?,
        }
        wait_until_full(round)?;
        round.count(Fault::DiskFull);
        round.let_work(100..700);
        match &ballast {
            Some(ballast) => std::fs::remove_file(ballast).map_err(|error| format!("the ballast stays: {error}"))?,
            None => io_errors::order(&round.home, "")?,
        }
        round.wait_for_progress()?;
    }
    Ok(())
}

/// Writes until the server refuses a write because the disk is full. The store's files have some room left in themselves,
/// which the load uses up first.
fn wait_until_full(round: &Round) -> Result<(), String> {
    let (api, started) = (&round.server_apis[0], now());
    for number in 0.. {
        let body = json!({"tenantId": "local", "backendProfile": "scripted", "storageKind": "none",
            "sessionId": format!("fill-{}-{number}", round.tally.of(Fault::DiskFull)), "title": "x".repeat(TITLE_CHARS)});
        let reply = round.stage.runtime.block_on(api.call("POST", "/api/v1/sessions", Some(&body)));
        match reply {
            Reply::Lost(why) if why.starts_with("503") && why.contains("store-disk-full") => return Ok(()),
            Reply::Refused(status, body) => return Err(format!("a write to a full disk was refused: {status} {body}")),
            _ if crate::is_interrupted() => return Err("interrupted".into()),
            _ if since(started) > FULL_WITHIN => break,
            _ => {}
        }
    }
    Err(format!("no write was refused with store-disk-full within {FULL_WITHIN:?} of filling the disk"))
}

fn fill(path: &Path) {
    let Ok(mut file) = File::create(path) else { return };
    for size in [1024 * 1024, 64 * 1024, 4096, 512] {
        let block = vec![7; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
}
