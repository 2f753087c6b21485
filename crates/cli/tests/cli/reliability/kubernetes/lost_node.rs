//! A node that is lost while one of its pods uses the storage of its session.

use std::path::Path;

use serde_json::json;

use super::{ClusterServer, IMAGE, PROGRAM, calls, has_begun_call, result, text, with_open_call};
use crate::fixtures::{
    http::Http,
    process::eventually,
    runner::run_request,
    test_home::{Engine, both_engines},
};
use ostler_testkit::kube::kubelet::find_claim_directory;

#[both_engines]
fn a_turn_on_a_lost_node_is_continued_with_the_storage_of_its_session(engine: Engine) {
    let mut setup = ClusterServer::launch_alone(engine, &[]);
    let mut http = Http::new(setup.server());
    let session = json!({"tenantId": "local", "sessionId": "mine", "backendProfile": "scripted", "storageKind": "pvc"});
    let claim = text(&http.post("/api/v1/sessions", &session).good()["storagePvcName"]);
    let mut request = run_request();
    request["sessionRef"] = json!({"sessionId": "mine"});
    let (run_id, command_id, job) = setup.start(&mut http, &request, &with_open_call());
    let name = text(&job["jobName"]);
    setup.running_pod(&name);
    has_begun_call(&mut http, &run_id);
    let volume = find_claim_directory(setup.cluster.directory(), setup.cluster.namespace(), &claim);
    std::fs::write(volume.join("rollout"), "what was said").unwrap();
    setup.node.power_off();
    assert!(setup.cluster.own().unwrap().remove("nodes", "", setup.cluster.node()));
    setup.node = setup.cluster.start_node(&[(IMAGE, Path::new(PROGRAM))]).unwrap();
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    assert_eq!(calls(&mut http, &run_id)[..2], ["started", "outcome-unknown"]);
    let path = text(&job["poll"]["job"]);
    let job = eventually("the job ends", || Some(http.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
    assert_eq!(job["jobName"], json!(format!("{name}-2")));
    // Both pods have mounted the same claim, and the second one has measured what the first one left.
    let events = http.events(&run_id);
    let mounted = events.iter().filter(|event| event["payload"]["phase"] == "codex-rollout-storage-mounted");
    assert!(mounted.clone().count() == 2 && mounted.clone().all(|event| event["payload"]["pvcName"] == claim.as_str()));
    eventually("the storage was measured", || {
        let storage = http.get("/api/v1/sessions/mine/storage").good();
        (storage["storageFilesCount"] == 1 && storage["storageKind"] == "pvc").then_some(())
    });
    assert_eq!(std::fs::read_to_string(volume.join("rollout")).unwrap(), "what was said");
    assert_eq!(setup.cluster.objects("persistentvolumeclaims").len(), 1);
}
