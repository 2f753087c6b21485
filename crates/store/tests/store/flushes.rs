//! Whatever waits together commits together, and what one caller sent never fails another.

use std::time::Duration;

use futures_util::future::join_all;
use ostler_protocol::kernel::{
    events::EventType,
    operations::{AnswerPermissionOp, Op, Reply, Request},
    permissions::{Choice, PermissionStatus, Voter},
    runner_jobs::RunnerJob,
};
use ostler_store::{
    kernel::{permissions, runner_jobs},
    lane::LaneError,
};
use serde_json::{Value, json};

use crate::{
    build::{LAUNCHER, RunRef, create_run, event},
    host::Fault,
    invariants,
    model::{Model, digest},
    rows::Witness,
    store_process::{StoreProcess, refused_by},
    test_store::{TestStore, both_engines},
};

/// Long enough for spawned requests to be queued.
const QUEUED: Duration = Duration::from_millis(500);

/// Submits everything while the lanes are held, with a launcher's claim among it, and lets it go at once.
async fn in_one_flush(
    process: &mut StoreProcess,
    requests: Vec<Request>,
) -> (Vec<Result<Reply, LaneError>>, Vec<RunnerJob>) {
    let holding: Vec<_> = (0..8).map(|_| create_run(process.new_run(None))).collect();
    let (lanes, host, db) = (&process.lanes, &process.host, &process.db);
    host.shut();
    let hold = join_all(holding.into_iter().map(|request| lanes.submit(request)));
    let ask = async {
        tokio::time::sleep(QUEUED).await;
        join_all(requests.into_iter().map(|request| lanes.submit(request))).await
    };
    let claim = async {
        tokio::time::sleep(QUEUED).await;
        runner_jobs::claim(
            db,
            LAUNCHER,
            "launcher",
            process.now(),
            9,
            &[],
            ostler_store::kernel::runner_jobs::LaunchableJobs::default(),
        )
        .await
        .expect("a plain write is alone")
    };
    let open = async {
        tokio::time::sleep(2 * QUEUED).await;
        host.open();
    };
    let (held, answers, claimed, ()) = tokio::join!(hold, ask, claim, open);
    assert!(held.iter().all(Result::is_ok));
    (answers, claimed)
}

async fn check(test_store: &TestStore, process: &StoreProcess) {
    let rows = Witness::of(test_store).await.rows().await;
    invariants::check(&rows, &Model::default(), process.now()).unwrap();
    assert_eq!(rows.events(), process.host.published());
}

/// A permission request as a runner puts it.
fn ask(id: ostler_protocol::ids::PermissionId) -> Value {
    let options = json!([{"optionId": "allow", "name": "Yes", "kind": "allow_once"},
        {"optionId": "deny", "name": "No", "kind": "reject_once"}]);
    json!({"permissionId": id, "title": "may I?", "options": options, "digest": digest(id)})
}

/// How many events the run has, past the lanes.
async fn length(test_store: &TestStore, run: &RunRef) -> usize {
    let rows = Witness::of(test_store).await.rows().await;
    rows.of("events").iter().filter(|event| event.opt_text("run_id") == Some(&run.run_id.to_string())).count()
}

/// What was committed is found again, what was not is not, and rows kept from before are not believed.
#[both_engines]
async fn a_panic_in_a_flush_fails_its_callers_and_none_after_them(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    let command = process.turn(&run).await;
    let epoch = process.claim(&run, "runner").await;
    let say = |text: &str| event(EventType::AssistantMessage, Some(command), json!({"text": text}));
    for (fault, written) in [(Fault::AtTheStart, 0), (Fault::AfterTheCommit, 1)] {
        let before = length(&test_store, &run).await;
        // The other lane of Postgres is not to run into it.
        let request = run.append("runner", epoch, None, vec![say("cut off")]);
        *process.host.fault.lock().unwrap() = Some(fault);
        let answer = process.lanes.submit(request).await;
        assert!(matches!(answer, Err(LaneError::Store(_))), "{fault:?}: {answer:?}");
        let after = length(&test_store, &run).await;
        assert_eq!(after - before, written, "{fault:?}");
        let next = process.ask(run.append("runner", epoch, None, vec![say("and on")])).await;
        let Reply::Appended(appended) = next else { panic!("an append was answered with {next:?}") };
        assert_eq!(appended.last_seq, after as i64 + 1, "{fault:?}");
        process.run().await;
    }
    check(&test_store, &process).await;
}

/// Also across the two lanes of Postgres.
#[both_engines]
async fn of_two_runs_with_one_key_one_is_accepted_and_all_other_requests_are_served(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    let command = process.turn(&run).await;
    let job = process.mint.job(&run, Some(command), false, None, process.now());
    process.ask(run.request(Op::CreateJob(Box::new(job)))).await;
    let mut requests: Vec<_> = (0..40).map(|_| create_run(process.new_run(None))).collect();
    requests.insert(10, create_run(process.new_run(Some("key"))));
    requests.insert(30, create_run(process.new_run(Some("key"))));
    requests.push(process.new_turn(&run));
    let (mut answers, claimed) = in_one_flush(&mut process, requests).await;
    assert_eq!(claimed.len(), 1, "the launcher got its job");
    let second = answers.remove(30);
    let first = answers.remove(10);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let (won, lost) = if first.is_ok() { (first, second) } else { (second, first) };
    assert!(matches!(won, Ok(Reply::Run(..))), "{won:?}");
    assert_eq!(refused_by(&lost), "taken");
    check(&test_store, &process).await;
}

#[both_engines]
async fn a_refused_request_fails_no_other_in_its_flush(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    let command = process.turn(&run).await;
    let epoch = process.claim(&run, "runner").await;
    let say = |text: &str| vec![event(EventType::AssistantMessage, Some(command), json!({"text": text}))];
    let mut requests: Vec<_> = (0..10).map(|no| run.append("runner", epoch, Some(no), say("good"))).collect();
    requests.insert(5, run.append("runner", epoch - 1, None, say("stale")));
    let (mut answers, _) = in_one_flush(&mut process, requests).await;
    assert!(process.host.largest_flush() >= 11, "they went apart");
    assert_eq!(refused_by(&answers.remove(5)), "lease-epoch-stale");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    check(&test_store, &process).await;
}

#[both_engines]
async fn a_row_that_does_not_read_back_fails_only_who_needs_it(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (broken, whole) = (process.run().await, process.run().await);
    process.turn(&broken).await;
    let spoil = format!("UPDATE commands SET fold = 'nonsense' WHERE run_id = '{}'", broken.run_id);
    Witness::of(&test_store).await.execute(&spoil).await;
    // A process of its own: the one that wrote the row may still know it.
    process.db.close().await;
    let mut process = StoreProcess::numbered(&test_store, 1).await;
    let mut requests: Vec<_> = (0..10).map(|_| process.new_turn(&whole)).collect();
    requests.insert(3, process.new_turn(&broken));
    let (mut answers, _) = in_one_flush(&mut process, requests).await;
    assert!(matches!(answers.remove(3), Err(LaneError::Store(_))));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[both_engines]
async fn text_with_a_nul_in_it_fails_no_other_request(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (run, other) = (process.run().await, process.run().await);
    let command = process.turn(&run).await;
    let epoch = process.claim(&run, "runner").await;
    let id = process.mint.permission();
    let mut question = ask(id);
    question["title"] = "may\0I?".into();
    let says = vec![
        event(EventType::Session, None, json!({"threadId": "a\0b"})),
        event(EventType::ToolCall, Some(command), json!({"toolCallId": "a\0b", "status": "a\0b"})),
        event(EventType::PermissionRequest, Some(command), question),
    ];
    let mut requests: Vec<_> = (0..10).map(|_| process.new_turn(&other)).collect();
    requests.push(run.append("runner", epoch, None, says));
    let (answers, _) = in_one_flush(&mut process, requests).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    check(&test_store, &process).await;
}

#[both_engines]
async fn a_permission_id_is_used_once_and_has_no_effect_in_another_run(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (asking, thief) = (process.run().await, process.run().await);
    let (command, other) = (process.turn(&asking).await, process.turn(&thief).await);
    let (epoch, other_epoch) = (process.claim(&asking, "runner").await, process.claim(&thief, "thief").await);
    let id = process.mint.permission();
    let answer = |option: &str| {
        let voter = Voter { principal: "me".into(), client: None, is_local: true };
        let (choice, digest) = (Choice::Option(option.to_owned()), Some(digest(id)));
        Op::AnswerPermission(Box::new(AnswerPermissionOp { permission_id: id, choice, digest, voter }))
    };
    let request = || event(EventType::PermissionRequest, Some(command), ask(id));
    let once = asking.append("runner", epoch, None, vec![request()]);
    let twice = asking.append("runner", epoch, None, vec![request(), request()]);
    assert_eq!(refused_by(&process.lanes.submit(twice).await), "permission-id-used");
    process.ask(once.clone()).await;
    assert_eq!(refused_by(&process.lanes.submit(once.clone()).await), "permission-id-used");
    // Another run may ask under the same id; its answer is its own.
    let stolen = event(EventType::PermissionRequest, Some(other), ask(id));
    process.ask(thief.append("thief", other_epoch, None, vec![stolen])).await;
    process.ask(thief.request(answer("allow"))).await;
    let statuses = async |run: &RunRef| {
        let requests = permissions::list(&process.db, run.run_id).await.unwrap();
        requests.iter().map(|request| request.status).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&thief).await, [PermissionStatus::Allowed]);
    assert_eq!(statuses(&asking).await, [PermissionStatus::Pending]);
    process.ask(asking.request(answer("deny"))).await;
    assert_eq!(refused_by(&process.lanes.submit(once).await), "permission-id-used");
    assert_eq!(statuses(&asking).await, [PermissionStatus::Denied]);
    check(&test_store, &process).await;
}
