//! The run input dialect: chats by AG-UI run input. A message of a person becomes a command in the person's thread, and the
//! run's events are streamed as AG-UI events.

#![warn(unreachable_pub, clippy::allow_attributes, clippy::expect_used, clippy::print_stdout)]

mod capabilities;
pub mod config;
mod files;
mod holdings;
mod http;
mod service;
mod shapes;
mod state;

use axum::extract::DefaultBodyLimit;
use ostler_protocol::{
    failures::Problem,
    run_input::{failures::RunInputProblem, runs::in_dialect},
};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{
    config::{RunInputSection, attachments::AttachmentsSection},
    http::attachments::FORM_BYTES_MAX,
    service::{attachments, threads},
    state::RunInputState,
};
use ostler_server::{
    app::App,
    auth::Access,
    dialect::{Dialect, FailureEncoder, States, encoded},
};

/// The security scheme of signed URLs, and the parameter that carries the signature.
const SIGNATURE: &str = "signature";

pub fn dialect() -> Dialect {
    Dialect::new("run_input")
        .routes(operations)
        .failures(FailureEncoder { translate: in_dialect, encode, schema: "RunInputProblem" })
        .security(SIGNATURE, Access::Signed, security)
        .section::<RunInputSection>()
        .section::<AttachmentsSection>()
        .capabilities(capabilities::CAPABILITIES)
        .shapes(shapes::SHAPES)
        .open(|opening| async move { Ok(States::new().with(RunInputState::open(&opening.config)?)) })
        .chore("erasing threads", |app| async move { threads::finish_all_erasing(&app).await })
        .chore("deleting unused attachments", |app| async move { attachments::sweep(&app).await.map(drop) })
        .pictures(|app, command| async move { attachments::of_command(&app, &command).await })
        .holdings(holdings::HOLDINGS)
}

fn operations() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(http::runs::create))
        .routes(routes!(http::runs::events))
        .routes(routes!(http::runs::cancel))
        .routes(routes!(http::attachments::create))
        .routes(routes!(http::attachments::sign))
        .routes(routes!(http::attachments::get))
        .routes(routes!(http::history::get))
        .routes(routes!(http::sessions::erase))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
}

fn encode(problem: Problem) -> String {
    encoded(&RunInputProblem::from(problem))
}

fn security() -> SecurityScheme {
    let proof = "Made by this server for one file and a while; see `expires`.";
    SecurityScheme::ApiKey(ApiKey::Query(ApiKeyValue::with_description(SIGNATURE, proof)))
}
