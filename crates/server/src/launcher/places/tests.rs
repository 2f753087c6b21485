use ostler_protocol::kernel::leases::Claimed;
use serde_json::json;

use super::*;
use crate::clock::SystemClock;

const SLOTS: usize = 2;
const TIME: &str = "2026-11-19T08:00:00Z";

fn id(prefix: &str, number: u8) -> String {
    format!("{prefix}_{number:032x}")
}

fn run(profile: &str) -> Run {
    let policy = json!({"sandbox": "read-only", "approval": "never", "timeoutMs": 60_000, "network": "disabled",
        "secretScope": {"allowCredentialEcho": false, "toolCredentials": []}});
    let run = json!({"runId": id("run", 1), "sessionId": "s", "tenantId": "acme", "projectId": "p", "workspaceRef": {},
        "providerId": "local", "backendProfile": profile, "executionPolicy": policy, "traceSink": null, "status": "pending",
        "terminal": null, "cancelRequestedAt": null, "cancelReason": null, "lastSeq": 1, "commandCount": 1,
        "unfinishedCommands": 1, "leaseEpoch": 0, "attemptId": null, "createdAt": TIME, "updatedAt": TIME});
    serde_json::from_value(run).unwrap()
}

fn job(number: u8) -> RunnerJob {
    let job = json!({"runnerJobId": id("job", number), "runId": id("run", 1), "commandId": id("cmd", 1),
        "attemptId": id("att", 1), "attempt": 0, "jobName": "j", "namespace": "n", "launcher": "resident", "runnerId": "r",
        "podName": null, "logPath": null, "standing": true, "phase": "pending", "terminalSummary": {},
        "poll": {"job": "", "events": "", "result": ""}, "createdAt": TIME, "updatedAt": TIME});
    serde_json::from_value(job).unwrap()
}

fn started(job: RunnerJob) -> StartedJob {
    let run = run("scripted");
    let claimed = Claimed {
        lease_epoch: 1,
        lease_expires_at: TIME.parse().unwrap(),
        attempt_id: job.attempt_id,
        run,
        commands: vec![],
        thread_id: None,
    };
    StartedJob { job, claimed }
}

/// Places that are open, with their slots and the receiver of started jobs.
fn open() -> (ResidentPlaces, HeldJobs, Arc<Semaphore>, mpsc::UnboundedReceiver<ResidentJob>) {
    let (held_jobs, slots) = (HeldJobs::default(), Arc::new(Semaphore::new(SLOTS)));
    let places = ResidentPlaces::new(held_jobs.clone(), Ids::new(Arc::new(SystemClock)));
    let receiver = places.open((&Config::default(), None), "launcher", &slots);
    places.note_waiting(false);
    (places, held_jobs, slots, receiver)
}

#[test]
fn a_place_takes_a_slot_until_its_runner_is_started() {
    let (places, _, slots, mut receiver) = open();
    let run = run("scripted");
    let place = places.reserve(&job(1), &run).unwrap();
    assert_eq!((place.owner.as_str(), place.take_up), ("launcher", true));
    assert!(places.has_reservations() && slots.available_permits() == SLOTS - 1);
    assert!(places.reserve(&job(1), &run).is_none(), "the job is in hand");
    places.reserve(&job(2), &run).unwrap();
    assert!(places.reserve(&job(3), &run).is_none(), "there are two slots");
    places.send_started(vec![started(job(1)), started(job(2))]);
    assert!(!places.has_reservations());
    drop(receiver.try_recv().unwrap());
    assert_eq!(slots.available_permits(), 1);
}

#[test]
fn a_flush_that_failed_gives_its_places_back() {
    let (places, held_jobs, slots, _receiver) = open();
    for unanswered_at in [None, Some(TIME.parse().unwrap())] {
        places.reserve(&job(1), &run("scripted")).unwrap();
        places.give_back(&[job(1).runner_job_id], unanswered_at);
        assert!(!places.has_reservations() && slots.available_permits() == SLOTS);
        // The store may have committed the flush, so the launcher looks for the job.
        assert_eq!(held_jobs.has_unanswered(), unanswered_at.is_some());
    }
}

#[test]
fn no_place_is_reserved_by_a_server_that_stops_or_has_jobs_that_wait_longer() {
    let (places, .., mut receiver) = open();
    let run = run("scripted");
    places.note_waiting(true);
    assert!(places.reserve(&job(1), &run).is_none());
    places.note_waiting(false);
    places.reserve(&job(1), &run).unwrap();
    places.stop_reserving();
    assert!(places.reserve(&job(2), &run).is_none());
    // The flush of the first one was on its way.
    assert!(places.has_reservations());
    places.send_started(vec![started(job(1))]);
    assert!(receiver.try_recv().is_ok() && !places.has_reservations());
}

#[test]
fn only_a_runner_without_a_program_takes_up_its_turn_with_the_lease() {
    let (places, ..) = open();
    let takes_up = |run: &Run, number: u8| {
        let take_up = places.reserve(&job(number), run).unwrap().take_up;
        places.give_back(&[job(number).runner_job_id], None);
        take_up
    };
    let run = run("mine");
    let of_run = RunRef {
        run_id: run.run_id,
        session: run.session,
        tenant_id: "acme".into(),
        owner: None,
        backend_profile: "mine".into(),
    };
    assert!(!takes_up(&run, 1), "a profile that is not known yet");
    places.note_backend(&of_run, false);
    assert!(takes_up(&run, 1));
    assert!(!takes_up(&Run { tenant_id: "other".into(), ..run.clone() }, 1));
    places.note_backend(&of_run, true);
    assert!(!takes_up(&run, 1));
}

#[test]
fn jobs_of_other_launchers_and_workspaces_find_no_place() {
    let (places, ..) = open();
    let run = run("scripted");
    let process = RunnerJob { launcher: Launcher::Process, ..job(1) };
    assert!(places.reserve(&process, &run).is_none());
    let elsewhere = RunnerJob { placement: Some("workspace".into()), ..job(1) };
    assert!(places.reserve(&elsewhere, &run).is_none());
}
