//! Backends: what a runner can drive. A backend works on one turn at a time, reports what it does through a
//! [`TurnSink`], and ends the turn by returning how it ended.
//!
//! A backend knows nothing of leases, epochs, batches or the server: the [`TurnSink`] is all it has.

pub mod acp;
mod child;
pub mod codex;
pub(crate) mod interface;
mod model;
pub(crate) mod process;
mod scripted;
mod toolkit;
pub(crate) mod turn;

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use ostler_protocol::{Failure, FailureKind, kernel::provider_profiles::AgentConfig};
use secrecy::SecretString;
use tokio::time::timeout;

pub use interface::Backend;
pub use turn::{Turn, TurnAbort, TurnEnd, TurnResult};

use crate::{
    environment::{BackendEnvironment, Unavailable},
    side_queries::{SideQuery, SideQueryLimits},
    turn_sink::TurnSink,
};

/// The backend that an environment is for.
pub(crate) fn for_environment(environment: &BackendEnvironment) -> Box<dyn Backend> {
    if let Some(reason) = &environment.unavailable {
        return Box::new(UnavailableBackend(reason.clone()));
    }
    match &environment.backend {
        AgentConfig::Scripted => Box::new(scripted::ScriptedBackend),
        AgentConfig::Codex => Box::new(codex::CodexBackend::new(environment.clone())),
        AgentConfig::Model { base_url, model } => Box::new(model::ModelBackend::new(base_url, model, environment)),
        AgentConfig::Acp { command, keep, .. } => Box::new(acp::AcpBackend::new(command, keep, environment)),
    }
}

/// Asks the model of an environment's backend a question beside a session. `None` if it has no answer, or is not known. `files` are
/// those of the backend's home, which need not exist, by their paths in it.
pub async fn side_query(
    environment: &BackendEnvironment,
    files: &BTreeMap<String, SecretString>,
    query: &SideQuery,
    limits: SideQueryLimits,
) -> Result<Option<String>, TurnEnd> {
    if let Some(reason) = &environment.unavailable {
        return Err(reason.end());
    }
    let chars_max = limits.answer_chars_max;
    let asked = async {
        match &environment.backend {
            AgentConfig::Scripted => Ok(scripted::answer_aside(query).unwrap_or_default()),
            AgentConfig::Model { base_url, model } => {
                model::side_query::ask(base_url, model, (environment, files), query, chars_max).await
            }
            AgentConfig::Acp { .. } => acp::side_query::ask((environment, files), query, chars_max).await,
            // Codex has no way to be asked without its tools.
            AgentConfig::Codex => Ok(String::new()),
        }
    };
    let late = |_| TurnEnd::failed(FailureKind::BackendTimeout, "the backend did not answer in time");
    let answer = timeout(limits.deadline, asked).await.map_err(late)??;
    let answer = environment.text_cutter().cut(answer.trim(), chars_max);
    Ok(Some(answer).filter(|answer| !answer.is_empty()))
}

/// A backend whose turns all fail with this reason.
pub(crate) fn unavailable(failure: Failure) -> Box<dyn Backend> {
    Box::new(UnavailableBackend(Unavailable::from(failure)))
}

/// Whether the model of an environment's backend can be asked by [`side_query`].
pub fn answers_side_queries(environment: &BackendEnvironment, files: &BTreeMap<String, SecretString>) -> bool {
    environment.unavailable.is_none()
        && match &environment.backend {
            AgentConfig::Scripted | AgentConfig::Model { .. } => true,
            AgentConfig::Acp { .. } => acp::side_query::has_model(environment, files),
            AgentConfig::Codex => false,
        }
}

/// A backend whose environment could not be prepared: every turn fails with the reason instead of waiting for ever.
struct UnavailableBackend(Unavailable);

impl Backend for UnavailableBackend {
    fn turn<'a>(&'a mut self, _: &'a Turn, _: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(async { Ok(self.0.end()) })
    }

    fn keeps_lease(&self) -> bool {
        false
    }
}
