//! A power cut: the store is on a loop-mounted file system, the server is frozen in the middle of its work, and the image is
//! copied. The page cache still holds data that was not flushed; the copy holds only what reached the device, like a disk
//! after a power failure. (Reads of the image file see only what the loop device has written to it: the cache of the mounted
//! file system is separate.)

use std::{thread, time::Duration};

use ostler_testkit::{loop_mount::LoopMount, process::freeze};

use crate::fixtures::{
    http::Http,
    loop_mount::mount_or_report,
    process::eventually,
    runner::Writer,
    test_home::{Engine, TestHome},
};

const IMAGE_BYTES: u64 = 64 * 1024 * 1024;
const WRITERS: usize = 3;
/// Below SQLite's first checkpoint, which would write to the disk by itself.
const WRITE_FOR: Duration = Duration::from_millis(500);
/// If another process calls `sync` at the wrong moment, the test with the weak setting is repeated.
const TRIES: usize = 3;

/// What remains of the acknowledged events after a power cut.
struct Remaining {
    acked: usize,
    lost: usize,
    verified: bool,
}

#[test]
fn an_acknowledged_event_survives_a_power_cut_only_with_full_synchronous() {
    let Some(left) = cut_power("full") else { return };
    assert!(left.acked > 50, "only {} events were acknowledged", left.acked);
    assert_eq!((left.lost, left.verified), (0, true), "of {} acknowledged", left.acked);
    println!("full: {} acknowledged, 0 lost", left.acked);
    for weak in ["normal", "off"] {
        let seen = (0..TRIES).find_map(|_| cut_power(weak).filter(|left| left.lost > 0));
        let left = seen.unwrap_or_else(|| panic!("with synchronous={weak} nothing was lost: this test sees nothing"));
        println!("{weak}: {} acknowledged, {} lost", left.acked, left.lost);
    }
}

/// `None` if loop mounts are not available.
fn cut_power(synchronous: &str) -> Option<Remaining> {
    let mut home = TestHome::on_disk(Engine::Sqlite).without_runner();
    home.set("OSTLER_STORE__SQLITE_SYNCHRONOUS", synchronous);
    home.flags.push("--unsafe-durability".into());
    let (image, copy) = (home.path("disk.img"), home.path("copy.img"));
    let mount = mount_or_report(&image, IMAGE_BYTES, &home.path("disk"))?;
    home.data_dir = mount.dir.join("data");
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&mut http, &format!("runner-{n}"))).collect();
    thread::scope(|scope| {
        for writer in &mut writers {
            let mut http = Http::new(&server);
            scope.spawn(move || writer.write_until_cut_off(&mut http));
        }
        thread::sleep(WRITE_FOR);
        eventually("enough was written", || (written(&mut http) > 100).then_some(()));
        assert!(freeze(server.process.0.id()), "the server stops");
        mount.copy_device(&copy).unwrap();
        server.kill();
    });
    drop(mount);
    let mount = LoopMount::mount(&copy, &home.path("restored")).expect("the journal is replayed");
    home.data_dir = mount.dir.join("data");
    let left = look(&home, &writers);
    drop(mount);
    Some(left)
}

fn written(http: &mut Http) -> usize {
    let page = http.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix("ostler_events_total "));
    line.expect("it is counted").parse().unwrap()
}

/// Opens the copy with the normal program, and compares it with the records.
fn look(home: &TestHome, writers: &[Writer]) -> Remaining {
    let acked = writers.iter().map(|writer| writer.acked.len()).sum();
    let nothing = Remaining { acked, lost: acked, verified: false };
    if !home.data_dir.join("ostler.db").exists() {
        return nothing;
    }
    let verified = home.verify().0 == 0;
    let Ok(server) = home.try_serve() else { return nothing };
    let mut http = Http::new(&server);
    let lost = writers.iter().map(|writer| lost(&mut http, writer)).sum();
    Remaining { acked, lost, verified }
}

fn lost(http: &mut Http, writer: &Writer) -> usize {
    if http.get(&format!("/api/v1/runs/{}", writer.run_id)).status != 200 {
        return writer.acked.len();
    }
    let events = http.events(&writer.run_id);
    let is_there = |(seq, number): (&i64, &i64)| {
        events.get(*seq as usize - 1).is_some_and(|event| event["payload"]["n"] == *number)
    };
    let lost = writer.acked.iter().filter(|entry| !is_there(*entry)).count();
    if lost == 0 {
        writer.check(http);
    }
    lost
}
