//! A full disk: writes are rejected with the reason, reads continue, nothing crashes, and once there is space the server works
//! again without losing anything acknowledged.

use std::{fs::File, io::Write, path::Path};

use crate::fixtures::{
    http::{Http, HttpResponse},
    loop_mount::mount_or_report,
    runner::{Writer, run_request},
    test_home::{Engine, TestHome},
};

const IMAGE_BYTES: u64 = 24 * 1024 * 1024;
/// The free space inside the store's existing files is used up within this many batches.
const BATCHES_MAX: usize = 500;

#[test]
fn a_full_disk_rejects_writes_and_loses_nothing() {
    let mut home = TestHome::on_disk(Engine::Sqlite).without_runner();
    let Some(mount) = mount_or_report(&home.path("disk.img"), IMAGE_BYTES, &home.path("disk")) else { return };
    home.data_dir = mount.dir.join("data");
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writer = Writer::new(&mut http, "runner-a");
    writer.pad_bytes = 8_000;
    writer.claim(&mut http);
    for _ in 0..10 {
        let batch = writer.next_batch();
        assert_eq!(writer.append(&mut http, &batch).unwrap().status, 200);
    }
    let ballast = mount.dir.join("ballast");
    fill(&ballast);
    let refused = (0..BATCHES_MAX).find_map(|_| {
        let batch = writer.next_batch();
        let answer = writer.append(&mut http, &batch).unwrap();
        (answer.status != 200).then_some((batch, answer))
    });
    let (batch, answer) = refused.expect("a full disk is noticed");
    assert_refused(&answer);
    assert_refused(&http.post("/api/v1/runs", &run_request()));
    assert_refused(&writer.claim_as(&mut http, "runner-a"));
    let cancel = format!("/api/v1/runs/{}/cancel", writer.run_id);
    let refused = http.post(&cancel, &serde_json::json!({}));
    assert_refused(&refused);
    assert_eq!(http.get("/health/live").status, 200);
    let readiness = http.get("/health/readiness");
    assert_eq!(readiness.status, 503, "{readiness:?}");
    let store = &readiness.json()["store"];
    assert_eq!((&store["reachable"], &store["writable"]), (&true.into(), &false.into()), "{store}");
    assert_eq!(store["reason"], "disk-full");
    let page = http.get("/metrics").body;
    assert!(page.contains("\nostler_store_reachable 1\n") && page.contains("\nostler_store_writable 0\n"), "{page}");
    assert!(!page.contains("reason=\"disk-full\"} 0"), "{page}");
    let doctor = String::from_utf8(home.cli(Some(&server), &["doctor"]).stdout).unwrap();
    assert!(doctor.contains("not writable (disk-full)"), "{doctor}");
    writer.check(&mut http);

    std::fs::remove_file(&ballast).unwrap();
    let again = writer.append(&mut http, &batch).unwrap();
    assert_eq!(again.status, 200, "the refused batch, once there is room: {again:?}");
    let next = writer.next_batch();
    assert_eq!(writer.append(&mut http, &next).unwrap().status, 200);
    writer.check(&mut http);
    assert_eq!(http.get("/health/readiness").status, 200);
    server.stop();
    home.assert_verified();
    let server = home.serve();
    writer.check(&mut Http::new(&server));
    // Stopped before its file system is unmounted.
    drop(server);
}

fn assert_refused(answer: &HttpResponse) {
    let (status, kind, _) = answer.refusal();
    assert_eq!((status, kind.as_str()), (503, "infra-failed"), "{answer:?}");
    let body = answer.json();
    assert_eq!(
        (&body["details"]["rule"], &body["details"]["retryAfterMs"]),
        (&"store-disk-full".into(), &2_000.into())
    );
    assert!(body["message"].as_str().unwrap().contains("disk is full"), "{body}");
}

/// Fills the disk to the last block.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [1024 * 1024, 64 * 1024, 4096, 512] {
        let block = vec![7; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
}
