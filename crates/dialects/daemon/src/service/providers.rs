//! The providers of the workspace: its backend profiles by their kind of backend.

use ostler_protocol::{
    Failure,
    daemon::{
        cells::CellStatus,
        workspace::{CurrentProvider, ModelProvider, ProviderModel, ProvidersStatus, SNAPSHOT_VERSION},
    },
    kernel::backends::Backend,
};
use ostler_server::{app::App, auth::Principal};

use super::{profiles, settings, workspace};
use crate::state::DaemonState;

/// The backend profile of new sessions.
pub(crate) async fn current_model(app: &App) -> String {
    let chosen = settings::effective(app).await.model;
    chosen.unwrap_or_else(|| DaemonState::of(app).config.profile.clone())
}

pub(crate) async fn get(app: &App, caller: &Principal) -> Result<ProvidersStatus, Failure> {
    workspace::check_read(app, caller)?;
    let model = current_model(app).await;
    let backends = profiles::list(app, caller).await?;
    let current = backends.iter().find(|backend| backend.profile == model);
    let current = current
        .map(|backend| CurrentProvider { auth_type: backend.backend_kind.clone(), model_id: backend.profile.clone() });
    Ok(ProvidersStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        initialized: true,
        providers: by_kind(&backends, &model),
        current,
    })
}

fn by_kind(backends: &[Backend], model: &str) -> Vec<ModelProvider> {
    let mut providers: Vec<ModelProvider> = vec![];
    for backend in backends {
        let provider = match providers.iter_mut().position(|provider| provider.auth_type == backend.backend_kind) {
            Some(position) => &mut providers[position],
            None => {
                providers.push(empty(&backend.backend_kind));
                let last = providers.len() - 1;
                &mut providers[last]
            }
        };
        if profiles::is_usable(backend) {
            (provider.status, provider.error) = (CellStatus::Ok, None);
        }
        let is_current = backend.profile == model;
        provider.current |= is_current;
        provider.models.push(ProviderModel {
            model_id: backend.profile.clone(),
            base_model_id: backend.profile.clone(),
            name: backend.profile.clone(),
            description: backend.message.clone(),
            is_current,
            is_runtime: false,
        });
    }
    providers
}

/// A provider without a model that could be used.
fn empty(backend_kind: &str) -> ModelProvider {
    ModelProvider {
        kind: "model_provider".to_owned(),
        status: CellStatus::Warning,
        error: Some("none of its profiles is ready".to_owned()),
        auth_type: backend_kind.to_owned(),
        current: false,
        models: vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_one_backend_are_one_provider() {
        let backend = |profile: &str, kind: &str, ready| Backend {
            profile: profile.into(),
            backend_kind: kind.into(),
            available: true,
            ready,
            ..Backend::default()
        };
        let backends = [backend("a", "codex", false), backend("b", "model", true), backend("c", "codex", true)];
        let providers = by_kind(&backends, "c");
        let shown: Vec<_> =
            providers.iter().map(|p| (p.auth_type.as_str(), p.status, p.current, p.models.len())).collect();
        assert_eq!(shown, [("codex", CellStatus::Ok, true, 2), ("model", CellStatus::Ok, false, 1)]);
        let current: Vec<_> = providers[0].models.iter().map(|model| model.is_current).collect();
        assert_eq!(current, [false, true]);
        assert_eq!(by_kind(&backends[..1], "c")[0].status, CellStatus::Warning);
    }
}
