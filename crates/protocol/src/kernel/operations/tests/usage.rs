//! Usage and labels, each decided with the operation that causes it.

use serde_json::json;

use super::*;
use crate::kernel::{
    labels::LabelPatch,
    operations::usage::empty_day,
    usage::{UsageDay, day_of},
};

fn patch(changes: serde_json::Value) -> LabelPatch {
    serde_json::from_value(changes).unwrap()
}

#[test]
fn labels_change_after_the_end_and_only_if_they_differ() {
    let mut scene = Scene::new();
    let run_id = scene.run();
    scene.apply(run_id, Op::CancelRun(CancelRunOp { by: "test".into(), reason: None })).unwrap();
    let (events, last_seq) = (scene.desk.events.len(), scene.desk.run(run_id).unwrap().run.last_seq);
    let op = || Op::LabelRun(LabelRunOp { patch: patch(json!({"team": "search", "none": null})), by: "test".into() });
    for _ in 0..2 {
        let Ok(Reply::LabelledRun(run)) = scene.apply(run_id, op()) else { panic!("labelled") };
        assert_eq!(run.labels.iter().collect::<Vec<_>>(), [("team", "search")]);
    }
    assert_eq!(scene.desk.events.len(), events + 1, "the same again is no fact");
    let fact = scene.desk.events.last().unwrap();
    assert_eq!((fact.run, fact.event_type), (None, EventType::Session));
    assert_eq!(scene.desk.run(run_id).unwrap().run.last_seq, last_seq, "it is not part of the run's own log");
    let many = (0..17).map(|n| (format!("k{n}"), Some(String::new()))).collect();
    let too_many = Op::LabelRun(LabelRunOp { patch: many, by: "test".into() });
    assert_eq!(scene.refused(run_id, too_many), "labels-count");
}

#[test]
fn a_new_run_is_counted_on_its_day_and_nothing_else_is() {
    let mut scene = Scene::new();
    let run_id = scene.run();
    let rows = scene.desk.run(run_id).unwrap();
    let today = UsageDay { runs: 1, ..empty_day(&scene.desk.session, &rows.run, day_of(scene.now)) };
    assert_eq!(rows.usage.values().collect::<Vec<_>>(), [&today]);
    // What was written once is not added again.
    scene.desk.keep_warm();
    assert!(scene.desk.run(run_id).unwrap().usage.is_empty());
}
