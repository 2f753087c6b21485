//! The daemon dialect: editors and SDKs attach to a session of a coding agent, prompt it, follow its events as typed frames, vote on
//! its permission requests, and read and write the files of the workspace that the server is bound to. A prompt is a command in
//! a session of the kernel, and every frame is the translation of an event.

#![warn(unreachable_pub, clippy::allow_attributes, clippy::expect_used, clippy::print_stdout)]

mod capabilities;
pub mod config;
mod files;
mod gate;
mod holdings;
mod http;
mod replies;
mod service;
mod state;

use ostler_protocol::{
    daemon::failures::{DaemonProblem, SharedProblem},
    failures::Problem,
};
use ostler_server::dialect::{Dialect, FailureEncoder, States, encoded};

use self::{
    config::DaemonSection,
    files::FileSlots,
    service::{stream::Streams, workspace::WorkspaceState},
    state::DaemonState,
};

pub fn dialect() -> Dialect {
    let dialect = Dialect::new("daemon")
        .routes(http::routes)
        .failures(FailureEncoder { translate: |failure| failure, encode, schema: "DaemonProblem" })
        .gate(&gate::RULES)
        .shared_paths::<SharedProblem>(gate::SHARED_PATHS, gate::SHARED_FAILURES)
        .deep_health(|app| async move { service::health::counts(&app).await })
        .section::<DaemonSection>()
        .toggles(config::toggles)
        .workspace_tenant(|config| config.section::<DaemonSection>().tenant)
        .open(|opening| async move {
            let state = DaemonState::open(&opening.config)?;
            let states = States::new().with(state).with(Streams::default()).with(FileSlots::default());
            Ok(states.with(WorkspaceState::default()))
        })
        .holdings(holdings::HOLDINGS);
    capabilities::TABLES.iter().fold(dialect, |dialect, rows| dialect.capabilities(rows))
}

fn encode(problem: Problem) -> String {
    encoded(&DaemonProblem::from(problem))
}
