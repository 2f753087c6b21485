//! A full disk under SQLite: a real one, of a file system in an image file that is filled to its last block. Postgres
//! has its own disk; what it does when that is full is Postgres's affair, and looks to the server like its other faults.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::{Disk, Probe, SQLITE, io_errors};
use crate::{
    report::Fault,
    round::{Round, Setup},
};

const IMAGE_BYTES: u64 = 28 * 1024 * 1024;
const FILLINGS: usize = 2;
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
        round.count(Fault::DiskFull);
        // The store's files have some room left in themselves, which is used up first.
        round.let_work(300..1_200);
        match &ballast {
            Some(ballast) => std::fs::remove_file(ballast).map_err(|error| format!("the ballast stays: {error}"))?,
            None => io_errors::order(&round.home, "")?,
        }
        round.wait_for_progress()?;
    }
    Ok(())
}

fn fill(path: &Path) {
    let Ok(mut file) = File::create(path) else { return };
    for size in [1024 * 1024, 64 * 1024, 4096, 512] {
        let block = vec![7; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
}
