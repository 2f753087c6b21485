//! The models, modes and options of a session, as clients see them when they attach.

use ostler_protocol::{
    Failure,
    daemon::{
        approval_modes::{mode_option, session_modes},
        models::{SessionModel, SessionModels, SessionState},
    },
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{backends, companions},
};

use crate::{service::lookup::OpenSession, state::DaemonState};

/// The model that handles the session's next prompt: the name of a backend profile.
pub(crate) fn current_model(app: &App, open: &OpenSession) -> String {
    open.daemon.model_id.clone().unwrap_or_else(|| DaemonState::of(app).config.profile.clone())
}

pub(crate) async fn state(app: &App, open: &OpenSession) -> Result<SessionState, Failure> {
    let (current_model_id, mut available_models) =
        (current_model(app, open), models(app, &open.session.tenant_id).await?);
    if !available_models.iter().any(|model| model.model_id == current_model_id) {
        available_models.push(model(current_model_id.clone()));
    }
    let extensions = companions::extensions(app, &open.session.tenant_id, &current_model_id).await?;
    let models = SessionModels { current_model_id, available_models };
    let mode = extensions.map(|_| open.daemon.approval_mode());
    let config_options = mode.map(|mode| vec![mode_option(mode), models.option()]);
    Ok(SessionState { models, modes: mode.map(session_modes), config_options })
}

fn model(profile: String) -> SessionModel {
    SessionModel { name: profile.clone(), model_id: profile }
}

/// The backend profiles that prompts of the tenant can use.
pub(super) async fn models(app: &App, tenant_id: &str) -> Result<Vec<SessionModel>, Failure> {
    // Only names of profiles are read, which every client of the tenant may use.
    let backends = backends::list(app, &Principal::Operator).await?.backends.into_iter();
    let of_tenant = |tenant: Option<&str>| tenant.is_none_or(|tenant| tenant == tenant_id);
    let usable = backends.filter(|backend| backend.ready && of_tenant(backend.tenant_id.as_deref()));
    let allowed = usable.filter(|backend| app.config.policy.profile(&backend.profile).is_ok());
    let mut models: Vec<SessionModel> = vec![];
    for backend in allowed {
        if models.iter().all(|known| known.model_id != backend.profile) {
            models.push(model(backend.profile));
        }
    }
    Ok(models)
}
