//! Models of a session. Clients choose one by the name of a backend profile, and the next prompt is handled by that profile.

use ostler_protocol::{
    Failure, Rule,
    daemon::models::{ModelSet, SessionContext},
    limits::NAME_BYTES_MAX,
    text::clip,
};
use ostler_server::{app::App, auth::Principal, service::provider_profiles};
use ostler_store as store;
use serde_json::json;

use super::{
    lookup,
    notes::{self, Note},
    sessions,
};

/// The version of the status responses.
pub(crate) const STATUS_VERSION: u32 = 1;

pub(crate) async fn context(app: &App, caller: &Principal, id: &str) -> Result<SessionContext, Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let state = sessions::state(app, &open).await?;
    let (session_id, workspace_cwd) = (open.session.public_id(), open.daemon.workspace);
    Ok(SessionContext { v: STATUS_VERSION, session_id, workspace_cwd, state })
}

/// Lets another profile handle the session's next prompt. Followers receive the result, also a failure.
pub(crate) async fn set(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    model_id: Option<&str>,
) -> Result<ModelSet, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let missing = || Failure::invalid(Rule::InvalidModel, "modelId is required");
    let model_id = model_id.filter(|model_id| !model_id.is_empty()).ok_or_else(missing)?;
    let tenant_id = &open.session.tenant_id;
    let checked = match app.config.policy.profile(model_id) {
        Ok(_) => provider_profiles::check_ready(app, tenant_id, model_id).await,
        Err(failure) => Err(failure),
    };
    let note = |frame, data| Note { frame, data, client: client.map(str::to_owned) };
    if let Err(failure) = checked {
        if failure.kind.row().status >= 500 && failure.kind.row().retry {
            return Err(failure);
        }
        let requested = clip(&app.redactor.redact(model_id), NAME_BYTES_MAX);
        // The message may name the model.
        let error = app.redactor.redact(&failure.message).into_owned();
        let data = json!({"sessionId": id, "requestedModelId": requested, "error": error});
        notes::record(app, caller, open.session.session, &note("model_switch_failed", data)).await?;
        return Err(Failure::invalid(Rule::InvalidModel, error).detail("modelId", requested));
    }
    store::daemon::sessions::update_model(&app.db, open.session.session, model_id).await?;
    let data = json!({"sessionId": id, "modelId": model_id});
    notes::record(app, caller, open.session.session, &note("model_switched", data)).await?;
    Ok(ModelSet { model_id: model_id.to_owned() })
}
