//! Permission requests: opened, answered once, or resolved without an answer.

use super::*;
use crate::{
    kernel::{
        facts::Facts,
        permissions::{EditableArguments, ParsedPermission, PermissionStatus},
    },
    limits::PERMISSIONS_OPEN_MAX,
};

/// A run whose runner has opened a permission request, with the command and the request.
fn asking() -> (Scene, RunId, CommandId, PermissionId) {
    let mut scene = Scene::new();
    let run = scene.run();
    let turn = scene.turn(run);
    scene.claim(run, "runner");
    let permission = PermissionId::new(scene.body());
    scene.append(run, vec![asks(turn, permission)]).unwrap();
    (scene, run, turn, permission)
}

fn answer(permission_id: PermissionId, option: &str, digest: &str) -> Op {
    let (choice, digest) = (Choice::Option(option.to_owned()), Some(digest.to_owned()));
    Op::AnswerPermission(Box::new(AnswerPermissionOp { permission_id, choice, digest, voter: voter(None) }))
}

fn digest() -> String {
    "ab".repeat(32)
}

fn status(scene: &Scene, run: RunId, permission: PermissionId) -> PermissionStatus {
    scene.rows(run).permissions[&permission].status
}

#[test]
fn an_answer_names_the_option_and_exactly_what_will_run() {
    let (mut scene, run, _, permission) = asking();
    assert_eq!(scene.refused(run, answer(permission, "yes", &"00".repeat(32))), "permission-digest");
    assert_eq!(scene.refused(run, answer(permission, "perhaps", &digest())), "permission-option");
    assert_eq!(scene.rows(run).run.open_permissions, 1);
    scene.apply(run, answer(permission, "yes", &digest().to_uppercase())).unwrap();
    assert_eq!(status(&scene, run, permission), PermissionStatus::Allowed);
    assert_eq!(scene.rows(run).run.open_permissions, 0);
    let resolved = scene.facts(EventType::PermissionResolved).pop().unwrap();
    assert_eq!((&resolved["optionId"], &resolved["resolvedBy"]), (&json!("yes"), &json!("me")));
}

#[test]
fn the_deadline_is_set_without_reading_the_request_again() {
    let (mut scene, _, turn, _) = asking();
    let until = Timestamp::from_second(1_000_000).unwrap();
    let timed = asks(turn, PermissionId::new(scene.body())).with_deadline(until);
    let payload = RawJson::parse(timed.payload.to_string()).unwrap();
    assert_eq!(timed.facts, Facts::read(EventType::PermissionRequest, &payload).unwrap());
    // A schema that could not be compiled again does not change what was read before.
    let mut event = asks(turn, PermissionId::new(scene.body()));
    let Facts::Permission(ParsedPermission::Valid(ask)) = &mut event.facts else { panic!("it is well-formed") };
    ask.editable = Some(EditableArguments { arguments: json!({}), schema: json!({"type": "nonsense"}) });
    let Facts::Permission(ParsedPermission::Valid(ask)) = event.with_deadline(until).facts else {
        panic!("it was well-formed")
    };
    assert!(ask.editable.is_some());
    assert_eq!(ask.deadline, Some(until));
}

#[test]
fn an_option_that_rejects_denies() {
    let (mut scene, run, _, permission) = asking();
    scene.apply(run, answer(permission, "no", &digest())).unwrap();
    assert_eq!(status(&scene, run, permission), PermissionStatus::Denied);
}

#[test]
fn the_first_answer_counts_and_repeating_it_succeeds() {
    let (mut scene, run, _, permission) = asking();
    scene.apply(run, answer(permission, "no", &digest())).unwrap();
    let events = scene.desk.events.len();
    scene.apply(run, answer(permission, "no", &digest())).unwrap();
    assert_eq!(scene.refused(run, answer(permission, "yes", &digest())), "permission-resolved");
    assert_eq!(scene.desk.events.len(), events);
}

#[test]
fn an_answer_after_the_deadline_is_refused() {
    let (mut scene, run, _, permission) = asking();
    scene.advance_ms(5_000);
    assert_eq!(scene.refused(run, answer(permission, "yes", &digest())), "permission-resolved");
    scene.sweep(run);
    assert_eq!(status(&scene, run, permission), PermissionStatus::Cancelled);
    assert_eq!(scene.facts(EventType::PermissionResolved)[0]["resolvedBy"], "deadline");
}

#[test]
fn a_command_that_ends_cancels_its_questions_before_its_end_is_stated() {
    let (mut scene, run, turn, permission) = asking();
    scene.append(run, vec![ends(turn, "completed")]).unwrap();
    assert_eq!(status(&scene, run, permission), PermissionStatus::Cancelled);
    let [.., resolved, end] = &scene.desk.events[..] else { panic!("two events at least") };
    assert_eq!((resolved.event_type, end.event_type), (EventType::PermissionResolved, EventType::TerminalStatus));
}

#[test]
fn a_cancelled_run_leaves_no_question_open() {
    let (mut scene, run, _, permission) = asking();
    scene.advance_ms(LEASE_MS);
    scene.cancel_run(run);
    assert_eq!(status(&scene, run, permission), PermissionStatus::Cancelled);
    assert_eq!(scene.rows(run).run.open_permissions, 0);
}

#[test]
fn a_request_that_makes_no_sense_counts_as_denied_and_is_never_open() {
    let (mut scene, run, turn, _) = asking();
    let nonsense = NewEvent::written(EventType::PermissionRequest, Some(turn), &json!({"title": "may I?"}));
    scene.append(run, vec![nonsense]).unwrap();
    assert_eq!(scene.facts(EventType::PermissionResolved)[0]["status"], "denied");
    assert_eq!(scene.rows(run).run.open_permissions, 1);
}

#[test]
fn a_denial_of_what_could_not_be_read_is_found_under_its_id() {
    let (mut scene, run, turn, _) = asking();
    let id = PermissionId::new(scene.body());
    let nonsense = json!({"permissionId": id, "title": "may I?", "digest": "abc", "options": []});
    scene.append(run, vec![NewEvent::written(EventType::PermissionRequest, Some(turn), &nonsense)]).unwrap();
    assert_eq!(status(&scene, run, id), PermissionStatus::Denied);
    assert_eq!(scene.facts(EventType::PermissionResolved)[0]["permissionId"], json!(id));
    assert_eq!(scene.rows(run).run.open_permissions, 1);
}

#[test]
fn a_question_does_not_outlive_its_attempt() {
    let (mut scene, run, _, permission) = asking();
    scene.advance_ms(LEASE_MS);
    scene.claim(run, "another");
    assert_eq!(status(&scene, run, permission), PermissionStatus::Cancelled);
    assert_eq!(scene.refused(run, answer(permission, "yes", &digest())), "permission-resolved");
    assert_eq!(scene.rows(run).run.open_permissions, 0);
}

#[test]
fn the_event_of_a_request_states_when_it_expires() {
    let (mut scene, run, turn, first) = asking();
    let recorded = |scene: &Scene| scene.facts(EventType::PermissionRequest).pop().unwrap();
    let deadline = |scene: &Scene, id: PermissionId| scene.rows(run).permissions[&id].deadline;
    assert_eq!(recorded(&scene)["deadline"], json!(deadline(&scene, first)));
    // The policy of the run allows less than the request asks for.
    scene.desk.run_mut(run).run.execution_policy.permission_timeout_ms = Some(1_000);
    let second = PermissionId::new(scene.body());
    scene.append(run, vec![asks(turn, second)]).unwrap();
    let soon = crate::kernel::operations::lease::after(scene.now, 1_000);
    assert_eq!(deadline(&scene, second), soon);
    let fact = recorded(&scene);
    assert_eq!((&fact["deadline"], &fact["waitMs"]), (&json!(soon), &json!(5_000)), "other fields are kept");
}

#[test]
fn a_request_at_the_limit_of_its_size_stays_readable() {
    let (mut scene, run, turn, _) = asking();
    let id = PermissionId::new(scene.body());
    let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
    let mut payload =
        json!({"permissionId": id, "title": "may I?", "digest": digest(), "options": options, "command": ""});
    let left = crate::limits::PERMISSION_BYTES_MAX - payload.to_string().len();
    payload["command"] = "x".repeat(left).into();
    scene.append(run, vec![NewEvent::written(EventType::PermissionRequest, Some(turn), &payload)]).unwrap();
    assert_eq!(status(&scene, run, id), PermissionStatus::Pending);
    assert_eq!(scene.facts(EventType::PermissionRequest).pop().unwrap(), payload, "a longer one could not be read");
}

#[test]
fn a_request_may_set_its_own_deadline() {
    let (mut scene, run, turn, _) = asking();
    let ask = |scene: &mut Scene, deadline: Timestamp| {
        let id = PermissionId::new(scene.body());
        let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]);
        let payload = json!({"permissionId": id, "title": "may I?", "digest": digest(), "options": options,
            "command": "rm -r logs", "deadline": deadline});
        scene.append(run, vec![NewEvent::written(EventType::PermissionRequest, Some(turn), &payload)]).unwrap();
        id
    };
    let soon = crate::kernel::operations::lease::after(scene.now, 1_000);
    let (open, late) = (ask(&mut scene, soon), ask(&mut scene, Timestamp::UNIX_EPOCH));
    assert_eq!(scene.rows(run).permissions[&open].deadline, soon);
    assert_eq!(scene.rows(run).permissions[&open].command.as_deref(), Some("rm -r logs"));
    assert_eq!(status(&scene, run, late), PermissionStatus::Cancelled);
}

#[test]
fn a_permission_id_is_used_once_also_within_a_batch() {
    let (mut scene, run, turn, permission) = asking();
    let ask = |id| Scene::append_op("runner", 1, None, vec![asks(turn, id)]);
    assert_eq!(scene.refused(run, ask(permission)), "permission-id-used");
    scene.apply(run, answer(permission, "yes", &digest())).unwrap();
    assert_eq!(scene.refused(run, ask(permission)), "permission-id-used");
    let fresh = PermissionId::new(scene.body());
    let twice = Scene::append_op("runner", 1, None, vec![asks(turn, fresh), asks(turn, fresh)]);
    assert_eq!(scene.refused(run, twice), "permission-id-used");
}

#[test]
fn a_question_belongs_to_a_command_and_only_so_many_are_open() {
    let (mut scene, run, turn, _) = asking();
    let mut homeless = asks(turn, PermissionId::new(scene.body()));
    homeless.command_id = None;
    let op = Scene::append_op("runner", 1, None, vec![homeless]);
    assert_eq!(scene.refused(run, op), "permission-command");
    let many: Vec<_> = (1..PERMISSIONS_OPEN_MAX).map(|_| asks(turn, PermissionId::new(scene.body()))).collect();
    scene.append(run, many).unwrap();
    let op = Scene::append_op("runner", 1, None, vec![asks(turn, PermissionId::new(scene.body()))]);
    assert_eq!(scene.refused(run, op), "permissions-open");
}

#[test]
fn a_policy_decides_how_many_questions_are_open() {
    let (mut scene, run, turn, _) = asking();
    scene.desk.run_mut(run).run.execution_policy.max_open_permissions = Some(64);
    let many: Vec<_> = (1..64).map(|_| asks(turn, PermissionId::new(scene.body()))).collect();
    scene.append(run, many).unwrap();
    let op = Scene::append_op("runner", 1, None, vec![asks(turn, PermissionId::new(scene.body()))]);
    assert_eq!(scene.refused(run, op), "permissions-open");
}

#[test]
fn a_question_after_a_cancel_is_not_left_open() {
    let (mut scene, run, turn, _) = asking();
    scene.cancel(run, turn);
    assert_eq!(scene.rows(run).run.open_permissions, 0);
    let late = PermissionId::new(scene.body());
    scene.append(run, vec![asks(turn, late)]).unwrap();
    assert_eq!(status(&scene, run, late), PermissionStatus::Cancelled);
    assert_eq!(scene.rows(run).run.open_permissions, 0);
    let resolved = scene.facts(EventType::PermissionResolved).pop().unwrap();
    assert_eq!((&resolved["permissionId"], &resolved["resolvedBy"]), (&json!(late), &json!("cancelled on request")));
}
