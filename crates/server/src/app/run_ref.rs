//! The facts about a run that never change.

use std::sync::Arc;

use ostler_protocol::{
    ids::{RunId, SessionId},
    kernel::{runs::Run, sessions::Session},
};

/// The facts about a run that never change, so they can be cached.
#[derive(Clone)]
pub struct RunRef {
    pub run_id: RunId,
    pub session: SessionId,
    pub tenant_id: Arc<str>,
    /// The user whose thread it is in, if it is in one.
    pub owner: Option<Arc<str>>,
    pub backend_profile: Arc<str>,
}

impl RunRef {
    pub fn of(run: &Run, session: &Session) -> Self {
        let (tenant_id, backend_profile) = (run.tenant_id.as_str().into(), run.backend_profile.as_str().into());
        let owner = session.owner.as_deref().map(Arc::from);
        Self { run_id: run.run_id, session: run.session, tenant_id, owner, backend_profile }
    }
}
