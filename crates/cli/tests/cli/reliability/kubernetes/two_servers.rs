//! Two servers on one Postgres, and an API server that neither of them reaches for a while.
//!
//! The outage is scaled to the lease of these tests: it lasts as long as a turn of 2.5 s, and a lease lasts 2 s (by default 60 s).

use ostler_testkit::kube::KubeCluster;
use serde_json::{Value, json};

use super::{ClusterServer, has_said, result, slow, text};
use crate::fixtures::{http::Http, process::eventually, test_home::Engine};

/// Turns that are ordered while the API server is away.
const LATER_TURNS: usize = 4;

/// A turn that takes longer than a lease.
fn longer_than_a_lease() -> String {
    json!({"script": [{"say": "first"}, {"wait": 2_500}, {"say": "done"}]}).to_string()
}

/// How often a turn has begun.
fn begins(http: &mut Http, run_id: &str, word: &str) -> usize {
    let is_word = |event: &&Value| event["type"] == "assistant_message" && event["payload"]["text"] == word;
    http.events(run_id).iter().filter(is_word).count()
}

#[test]
fn two_servers_start_nothing_twice_and_lose_nothing_while_the_api_server_is_cut_off() {
    let mut setup = ClusterServer::launch_alone(Engine::Postgres, &[]);
    let second = setup.home.serve();
    let (mut one, mut two) = (Http::new(setup.server()), Http::new(&second));
    let (run_id, command_id, job) = setup.start_run(&mut one, &longer_than_a_lease());
    setup.running_pod(&text(&job["jobName"]));
    has_said(&mut one, &run_id, "first");
    let mut turns = vec![(run_id.clone(), command_id.clone(), job, "first")];
    setup.cluster.own().unwrap().cut_off(true);
    for number in 0..LATER_TURNS {
        let (http, other) = if number % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        let (run_id, command_id, job) = setup.start_run(http, &slow("later"));
        // The same order at the other server is the same job.
        let order = json!({"commandId": command_id, "idempotencyKey": "k"});
        let again = other.post(&format!("/api/v1/runs/{run_id}/runner-jobs"), &order).good();
        assert_eq!(again["jobName"], job["jobName"]);
        turns.push((run_id, command_id, job, "later"));
    }
    // The pod continues without the API server, and no server takes its run away.
    let ended = result(&mut two, &run_id, &command_id);
    assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
    assert_eq!(setup.cluster.objects("jobs").len(), 1, "nothing can be created");
    let KubeCluster::Own(api) = &mut setup.cluster else { unreachable!("it is the test kit's") };
    api.restart().unwrap();
    api.cut_off(false);

    for (run_id, command_id, job, word) in &turns {
        let ended = result(&mut one, run_id, command_id);
        assert_eq!((&ended["status"], &ended["reply"]), (&json!("completed"), &json!("done")));
        let path = text(&job["poll"]["job"]);
        let job = eventually("the job ends", || Some(two.get(&path).good()).filter(|job| job["phase"] == "succeeded"));
        assert_eq!((&job["attempt"], begins(&mut one, run_id, word)), (&json!(1), 1), "{job}");
    }
    let mut names: Vec<_> = setup.cluster.objects("jobs").iter().map(|job| text(&job["metadata"]["name"])).collect();
    let mut expected: Vec<_> = turns.iter().map(|(_, _, job, _)| text(&job["jobName"])).collect();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
}
