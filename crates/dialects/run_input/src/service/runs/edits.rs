//! Arguments that an answer to an interrupt puts in place of those of the request.

use ostler_protocol::{
    Failure, RawJson, Rule,
    kernel::permissions::{CheckedEdits, PermissionRequest, PermissionStatus},
};
use ostler_server::{app::App, tools::complete_edits};
use serde_json::Value;

/// Checks the arguments. Those of a call of this server's tools are completed and authorised, too, so that the digest which the
/// answer records is that of the call which is executed.
pub(super) async fn read(app: &App, request: &PermissionRequest, sent: &Value) -> Result<CheckedEdits, Failure> {
    let edited = RawJson::of(sent);
    // The agent runs exactly these arguments, so they are stored as they are.
    if app.redactor.redact_json(edited.as_str()) != edited.as_str() {
        return Err(Failure::rule(Rule::InterruptAnswer, "editedArgs must not contain a credential"));
    }
    // The same answer again: since the first one, the call may have changed what its arguments are completed with.
    if let Some(recorded) = request.edited.as_ref().filter(|_| request.status != PermissionStatus::Pending)
        && recorded.is_same_answer(sent)
    {
        return Ok(CheckedEdits::recorded(recorded.clone(), &request.digest));
    }
    match request.called_tool().filter(|_| request.status == PermissionStatus::Pending) {
        Some(tool) => {
            let completed = complete_edits(app, request, tool, sent).await?;
            Ok(check(app, request, Some(tool), &completed).await?.completed_from(sent))
        }
        None => check(app, request, None, sent).await,
    }
}

/// Compiles the schema of the request, apart from the work of other requests if it is large.
async fn check(
    app: &App,
    request: &PermissionRequest,
    tool: Option<&str>,
    arguments: &Value,
) -> Result<CheckedEdits, Failure> {
    let size =
        RawJson::of(arguments).size() + request.editable.as_ref().map_or(0, |offered| RawJson::of(offered).size());
    let checking = || CheckedEdits::check(request.editable.as_ref(), &request.digest, tool, arguments.clone());
    app.compute(size, checking).await
}
