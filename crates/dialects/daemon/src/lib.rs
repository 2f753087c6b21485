//! The daemon dialect: editors and SDKs attach to a session of a coding agent, prompt it, follow its events as typed frames, vote on
//! its permission requests, and read and write the files of the workspace that the server is bound to. A prompt is a command in
//! a session of the kernel, and every frame is the translation of an event.

mod capabilities;
pub mod config;
mod files;
mod gate;
mod holdings;
mod http;
mod replies;
mod service;
mod state;
pub mod toggles;

use ostler_protocol::{
    daemon::failures::{DaemonProblem, SharedProblem},
    failures::Problem,
};
use ostler_server::{
    dialect::{Dialect, FailureEncoder, States, encoded},
    service::companions::{self, Companions},
};

use self::{
    config::DaemonSection,
    files::FileSlots,
    service::{
        companion::AgentProbe, device_flows::DeviceFlowStates, extensions::ExtensionOperations, mcp::DiscoveredScopes,
        stream::Streams, workspace::WorkspaceState,
    },
    state::DaemonState,
};

/// The variable of the published daemon that holds its token.
const TOKEN_VARIABLE: &str = "QWEN_SERVER_TOKEN";

pub fn dialect() -> Dialect {
    let dialect = Dialect::new("daemon")
        .routes(http::routes)
        .failures(FailureEncoder {
            translate: |failure| failure,
            encode,
            content_type: "application/json",
            schema: "DaemonProblem",
        })
        .unknown_paths(http::UNKNOWN_PATHS)
        .operator_token(TOKEN_VARIABLE)
        .client_terms(config::client_terms)
        .gate(&gate::RULES)
        .shared_paths::<SharedProblem>(gate::SHARED_PATHS, gate::SHARED_FAILURES)
        .deep_health(|app| async move { service::health::counts(&app).await })
        .section::<DaemonSection>()
        .toggles(config::enabled_toggles)
        .live_toggles(|app| async move {
            let facts = service::companion::backend_facts(&app).await;
            let states = [(toggles::AGENT, facts.has_agent), (toggles::SIDE_QUERIES, facts.answers_questions)];
            states.into_iter().filter(|(_, is_on)| *is_on).map(|(toggle, _)| toggle).collect()
        })
        .worker(companions::close_unused)
        .workspace_tenant(|config| config.section::<DaemonSection>().tenant)
        .open(|opening| async move {
            let state = DaemonState::open(&opening.config)?;
            let states = States::new().with(state).with(Streams::default()).with(FileSlots::default());
            let states = states.with(Companions::default()).with(AgentProbe::default());
            let states = states.with(ExtensionOperations::default()).with(WorkspaceState::default());
            let states = states.with(DiscoveredScopes::default());
            Ok(states.with(DeviceFlowStates::open(&opening.config)))
        })
        .worker(service::presence::watch)
        .user_chore(
            "erasing sessions of removed users",
            |app| async move { service::erasures::erase_orphaned(&app).await },
        )
        .worker(service::mcp::announce_budget)
        .worker(service::device_flows::finish_at_shutdown)
        .retention(service::retention::notes())
        .holdings(holdings::HOLDINGS);
    capabilities::TABLES.iter().fold(dialect, |dialect, rows| dialect.capabilities(rows))
}

fn encode(problem: Problem) -> String {
    encoded(&DaemonProblem::from(problem))
}
