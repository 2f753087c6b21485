//! Due automations: found by an index, claimed once, and given their next time in the same transaction.

use jiff::SignedDuration;
use ostler_protocol::{
    Timestamp,
    ids::{AutomationId, AutomationStartId, CommandId},
    kernel::sessions::Session,
    run_input::automations::{
        Automation, AutomationConfig, AutomationStart, AutomationStatus, Plan, StartStatus, StartTrigger,
        schedule::{RunAt, Schedule, ScheduleType},
    },
};
use ostler_store::run_input::{
    automation_starts::{self, DueStart, RequestedStart, RunningStart, StartEnd},
    automations::{self, InsertedAutomation},
};
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    build::create_session,
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const NOT_DUE: usize = 2_000;
const THREADS: i64 = 500;
const CLAIM: SignedDuration = SignedDuration::from_secs(60);
/// The version of the rules of time zones.
const RULES: &str = "2026a";

fn automation(process: &mut StoreProcess, next_run_at: Timestamp) -> Automation {
    let schedule = Schedule { kind: ScheduleType::Daily, run_at: RunAt { hour: 7, minute: 0 }, weekdays: vec![] };
    let config = AutomationConfig { input_template: "hi".into(), enabled_tools: None, context: None, schedule };
    Automation {
        id: AutomationId::new(process.mint.body()),
        owner_id: "ada".into(),
        tenant_id: "local".into(),
        title: "Digest".into(),
        bootstrap_key: None,
        config,
        timezone: "UTC".into(),
        next_run_at: Some(next_run_at),
        last_run_at: None,
        status: AutomationStatus::Active,
        disabled_reason: None,
        failures: 0,
        created_at: process.now(),
        updated_at: process.now(),
        plan: Plan { zone_rules: RULES.into(), ..Plan::default() },
        revision: 1,
    }
}

async fn insert(process: &mut StoreProcess, next_run_at: Timestamp) -> Automation {
    let new = automation(process, next_run_at);
    assert_eq!(automations::insert(&process.db, &new, i64::MAX).await.unwrap(), InsertedAutomation::Yes);
    new
}

fn due_start(process: &mut StoreProcess, automation: &Automation, next: Timestamp) -> DueStart {
    DueStart {
        automation_id: automation.id,
        due_us: automation.next_run_at.unwrap().as_microsecond(),
        next_us: Some(next.as_microsecond()),
        last_date: Some("2026-01-01".into()),
        zone_rules: RULES.into(),
        start_id: AutomationStartId::new(process.mint.body()),
        thread_id: process.mint.body().to_string(),
    }
}

fn requested(process: &mut StoreProcess, automation: &Automation) -> AutomationStart {
    let id = AutomationStartId::new(process.mint.body());
    AutomationStart {
        id,
        automation_id: automation.id,
        trigger: StartTrigger::Request,
        due_at: None,
        status: StartStatus::Starting,
        message: None,
        thread_id: process.mint.body().to_string(),
        run_id: id.to_string(),
        task_id: None,
        created_at: process.now(),
        ended_at: None,
    }
}

#[both_engines]
async fn what_is_due_is_found_without_a_look_at_what_is_not(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, later) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let due = insert(&mut process, now).await;
    let mut disabled = automation(&mut process, now);
    disabled.status = AutomationStatus::Disabled;
    automations::insert(&process.db, &disabled, i64::MAX).await.unwrap();
    let others: Vec<_> = (0..NOT_DUE).map(|_| automation(&mut process, later)).collect();
    let inserts = others.iter().map(|other| automations::insert(&process.db, other, i64::MAX));
    futures_util::future::join_all(inserts)
        .await
        .into_iter()
        .for_each(|inserted| assert_eq!(inserted.unwrap(), InsertedAutomation::Yes));
    if test_store.engine() == Engine::Postgres {
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let plan = automations::explain_due(&process.db, now).await.unwrap();
    assert!(plan.contains("automations_due") && !plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
    let plan = automations::explain_planned_before(&process.db, RULES).await.unwrap();
    assert!(plan.contains("automations_rules") && !plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
    assert_eq!(automations::list_due(&process.db, now, 10).await.unwrap(), [due]);
    assert_eq!(automations::find_next_due(&process.db).await.unwrap(), Some(now));
}

#[both_engines]
async fn the_newest_chat_is_found_past_threads_of_automations(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let now = process.now();
    let sessions: Vec<_> = (0..=THREADS)
        .map(|number| {
            let session = process.mint.session(Some(&format!("thread-{number}")), now);
            // The oldest one is the chat.
            let created_at = now.checked_add(SignedDuration::from_secs(number)).unwrap();
            Session { owner: Some("ada".into()), background: number > 0, created_at, ..session }
        })
        .collect();
    let chat = sessions[0].session;
    futures_util::future::join_all(sessions.into_iter().map(|session| process.ask(create_session(session)))).await;
    if test_store.engine() == Engine::Postgres {
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let found = automations::find_latest_chat(&process.db, "ada", None).await.unwrap();
    assert_eq!(found.map(|found| found.session), Some(chat));
    let plan = automations::explain_latest_chat(&process.db, "ada").await.unwrap();
    assert!(plan.contains("sessions_chats"), "{plan}");
}

#[both_engines]
async fn a_due_time_is_claimed_once_with_the_next_time(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, next) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let mut all = vec![];
    for _ in 0..20 {
        all.push(insert(&mut process, now).await);
    }
    let claims: Vec<Vec<DueStart>> =
        (0..6).map(|_| all.iter().map(|one| due_start(&mut process, one, next)).collect()).collect();
    let claimed = claims.iter().map(|claim| automation_starts::claim(&process.db, claim, next, now));
    let claimed = futures_util::future::join_all(claimed).await;
    let claimed: Vec<_> = claimed.into_iter().flat_map(Result::unwrap).collect();
    let mut ids: Vec<_> = claimed.iter().map(|start| start.automation_id).collect();
    ids.sort();
    let mut expected: Vec<_> = all.iter().map(|one| one.id).collect();
    expected.sort();
    assert_eq!(ids, expected, "each is claimed once, by one of the servers");
    for start in &claimed {
        let changed = automations::get(&process.db, start.automation_id).await.unwrap().unwrap();
        assert_eq!((changed.next_run_at, changed.last_run_at, changed.revision), (Some(next), Some(now), 2));
        assert_eq!((start.due_at, start.status), (Some(now), StartStatus::Starting));
        assert_eq!(changed.plan.zone_rules, RULES);
    }
    // Again with the old time: nothing is due any more.
    assert!(automation_starts::claim(&process.db, &claims[0], next, now).await.unwrap().is_empty());
}

#[both_engines]
async fn active_automations_by_older_rules_of_time_zones_are_listed(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let now = process.now();
    let mut insert_planned = async |rules: &str, status: AutomationStatus| {
        let new = automation(&mut process, now);
        let new = Automation { status, plan: Plan { zone_rules: rules.into(), ..new.plan }, ..new };
        assert_eq!(automations::insert(&process.db, &new, i64::MAX).await.unwrap(), InsertedAutomation::Yes);
        new
    };
    let older = [
        insert_planned("2025b", AutomationStatus::Active).await,
        insert_planned("2025z", AutomationStatus::Active).await,
    ];
    for rules in [RULES, "2026b"] {
        insert_planned(rules, AutomationStatus::Active).await;
    }
    insert_planned("2025b", AutomationStatus::Disabled).await;
    assert_eq!(automations::list_planned_before(&process.db, RULES, 10).await.unwrap(), older);
}

#[both_engines]
async fn an_expired_claim_is_taken_over_and_an_ended_start_is_not(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, next) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let one = insert(&mut process, now).await;
    let claim = [due_start(&mut process, &one, next)];
    let start = automation_starts::claim(&process.db, &claim, next, now).await.unwrap().remove(0);
    assert!(automation_starts::claim_expired(&process.db, next, now, 10).await.unwrap().is_empty());
    let taken = automation_starts::claim_expired(&process.db, next, next, 10).await.unwrap();
    assert_eq!((taken.len(), taken[0].attempts, &taken[0].start), (1, 2, &start));
    let end = |status| StartEnd { id: start.id, automation_id: one.id, status, message: None, failures_max: 1 };
    let disabled = automation_starts::update_ended(&process.db, end(StartStatus::Failed), next).await.unwrap();
    let disabled = disabled.unwrap();
    assert_eq!((disabled.status, disabled.next_run_at, disabled.failures), (AutomationStatus::Disabled, None, 1));
    assert!(automation_starts::claim_expired(&process.db, next, Timestamp::MAX, 10).await.unwrap().is_empty());
    // The first end counts.
    let again = automation_starts::update_ended(&process.db, end(StartStatus::Failed), next).await.unwrap();
    assert_eq!(again, None);
    let stored = automations::get(&process.db, one.id).await.unwrap().unwrap();
    assert_eq!(stored.failures, 1);
}

#[both_engines]
async fn starts_are_recorded_as_running_together_and_an_ended_one_stays_ended(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, next) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let mut claims = vec![];
    for _ in 0..3 {
        let one = insert(&mut process, now).await;
        claims.push(due_start(&mut process, &one, next));
    }
    automation_starts::claim(&process.db, &claims, next, now).await.unwrap();
    let (id, automation_id) = (claims[0].start_id, claims[0].automation_id);
    let end = StartEnd { id, automation_id, status: StartStatus::Cancelled, message: None, failures_max: 1 };
    automation_starts::update_ended(&process.db, end, now).await.unwrap();
    let started: Vec<_> = claims
        .iter()
        .map(|claim| RunningStart { start_id: claim.start_id, command_id: CommandId::new(process.mint.body()) })
        .collect();
    automation_starts::update_running(&process.db, &started).await.unwrap();
    for (index, running) in started.iter().enumerate() {
        let stored = automation_starts::get(&process.db, running.start_id).await.unwrap().unwrap();
        let expected = match index {
            0 => (StartStatus::Cancelled, None),
            _ => (StartStatus::Running, Some(running.command_id)),
        };
        assert_eq!((stored.status, stored.task_id), expected);
    }
    assert!(automation_starts::claim_expired(&process.db, next, Timestamp::MAX, 10).await.unwrap().is_empty());
    let ids: Vec<_> = claims.iter().map(|claim| claim.automation_id).collect();
    let absent = AutomationId::new(process.mint.body());
    let found = automations::list_by_ids(&process.db, &[ids[1], absent, ids[2]]).await.unwrap();
    let mut found: Vec<_> = found.iter().map(|automation| automation.id).collect();
    found.sort();
    let mut expected = ids[1..].to_vec();
    expected.sort();
    assert_eq!(found, expected);
}

#[both_engines]
async fn the_end_that_disables_an_automation_is_the_one_that_returns_it(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, later) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let mut one = automation(&mut process, later);
    // The limit was lowered since: the count is above it before the automation is disabled.
    one.failures = 3;
    automations::insert(&process.db, &one, i64::MAX).await.unwrap();
    let mut returned = vec![];
    for key in ["a", "b"] {
        let start = requested(&mut process, &one);
        let made = automation_starts::insert_requested(&process.db, &start, "ada", key, 10, later).await.unwrap();
        assert_eq!(made, RequestedStart::New);
        let end = StartEnd {
            id: start.id,
            automation_id: one.id,
            status: StartStatus::Failed,
            message: None,
            failures_max: 2,
        };
        returned.push(automation_starts::update_ended(&process.db, end, now).await.unwrap());
    }
    assert_eq!(returned[0].as_ref().map(|one| (one.status, one.failures)), Some((AutomationStatus::Disabled, 4)));
    assert_eq!(returned[1], None, "it was disabled before");
}

#[both_engines]
async fn a_change_that_was_read_before_a_success_does_not_restore_the_failures(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (now, later) = (process.now(), process.now().checked_add(CLAIM).unwrap());
    let mut one = automation(&mut process, later);
    one.failures = 1;
    automations::insert(&process.db, &one, i64::MAX).await.unwrap();
    let start = requested(&mut process, &one);
    automation_starts::insert_requested(&process.db, &start, "ada", "a", 10, later).await.unwrap();
    let end = StartEnd {
        id: start.id,
        automation_id: one.id,
        status: StartStatus::Completed,
        message: None,
        failures_max: 2,
    };
    automation_starts::update_ended(&process.db, end, now).await.unwrap();
    let changed = Automation { title: "New".into(), revision: one.revision + 1, ..one.clone() };
    assert!(!automations::update(&process.db, &changed, one.revision).await.unwrap(), "it was changed since");
    assert_eq!(automations::get(&process.db, one.id).await.unwrap().unwrap().failures, 0);
}

#[both_engines]
async fn a_deleted_automation_gets_no_start(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let later = process.now().checked_add(CLAIM).unwrap();
    let one = insert(&mut process, later).await;
    let start = requested(&mut process, &one);
    assert!(automations::delete(&process.db, one.id, &one.tenant_id).await.unwrap());
    let made = automation_starts::insert_requested(&process.db, &start, "ada", "a", 10, later).await.unwrap();
    assert_eq!(made, RequestedStart::NoAutomation);
    assert!(automation_starts::claim_expired(&process.db, later, Timestamp::MAX, 10).await.unwrap().is_empty());
}
