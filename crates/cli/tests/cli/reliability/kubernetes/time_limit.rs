//! Jobs with a time limit, which the cluster enforces.

use std::time::Duration;

use serde_json::json;

use super::{ClusterServer, has_said, result, slow, text};
use crate::fixtures::{
    http::Http,
    process::eventually,
    test_home::{Engine, one_engine},
};

#[one_engine]
fn a_turn_that_exceeds_the_time_limit_of_its_job_is_continued_and_the_start_counts(engine: Engine) {
    let setup = ClusterServer::launch_alone(engine, &[("OSTLER_KUBERNETES__DEADLINE_S", "60")]);
    let mut http = Http::new(setup.server());
    let (run_id, command_id, job) = setup.start_run(&mut http, &slow("first"));
    setup.running_pod(&text(&job["jobName"]));
    has_said(&mut http, &run_id, "first");
    setup.cluster.own().unwrap().advance(Duration::from_secs(61));
    let ended = result(&mut http, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    let path = text(&job["poll"]["job"]);
    let job = eventually("the job ends", || Some(http.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
    // The runner has handed back its run. Without a count, work that takes longer would be started again for ever.
    assert_eq!(job["attempt"], 2);
    let events = http.events(&run_id);
    let end = &events.iter().find(|event| event["payload"]["phase"] == "runner-ended").unwrap()["payload"]["end"];
    assert_eq!((&end["status"], &end["reason"]), (&json!("stopped"), &json!("DeadlineExceeded")), "{end}");
}
