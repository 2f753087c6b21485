//! Labels of a run. A change is a fact of its session, not of the run: a run that has ended can be labelled, and its own log
//! ends with its end.

use serde_json::json;

use super::{Reply, desk::Desk};
use crate::{
    Failure, Timestamp,
    ids::RunId,
    kernel::{
        events::{EventType, NewEvent},
        labels::LabelPatch,
    },
};

#[derive(Clone, Debug)]
pub struct LabelRunOp {
    pub patch: LabelPatch,
    pub by: String,
}

/// A change that changes nothing is not recorded.
pub(super) fn label_run(desk: &mut Desk, run_id: RunId, op: &LabelRunOp, now: Timestamp) -> Result<Reply, Failure> {
    let run = &desk.run(run_id)?.run;
    let labels = run.labels.patched(&op.patch)?;
    if labels != run.labels {
        let fact = json!({"change": "run-labelled", "runId": run_id, "labels": labels, "by": op.by});
        let run = &mut desk.run_mut(run_id).run;
        run.labels = labels;
        // The age of a run that has ended counts from its end.
        if !run.status.is_terminal() {
            run.updated_at = now;
        }
        desk.append_to_session(NewEvent::written(EventType::Session, None, &fact), now);
    }
    Ok(Reply::LabelledRun(Box::new((*desk.run(run_id)?.run).clone())))
}
