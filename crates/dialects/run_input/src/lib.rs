//! The run input dialect: chats by AG-UI run input. A message of a person becomes a command in the person's thread, and the
//! run's events are streamed as AG-UI events. Automations start such runs on a schedule, and people have calendars.

mod capabilities;
pub mod config;
mod files;
mod holdings;
mod http;
mod service;
mod shapes;
mod state;

pub use service::calendar_tools::{CalendarCallContext, calendar_tools, read_calendar, write_calendar};

use ostler_protocol::{
    failures::Problem,
    run_input::failures::{RunInputProblem, to_run_input},
};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};

use self::{
    config::{
        RunInputSection, attachments::AttachmentsSection, automations::AutomationsSection,
        system_agents::SystemAgentsSection, transcription::TranscriptionSection,
    },
    service::{attachments, automations, calendar_events, calendar_source::CalendarSource, threads},
    state::RunInputState,
};
use ostler_server::{
    auth::Access,
    dialect::{Dialect, FailureEncoder, PROBLEM_JSON, States, encoded},
};

/// The security scheme of signed URLs, and the parameter that carries the signature.
const SIGNATURE: &str = "signature";

pub fn dialect() -> Dialect {
    Dialect::new("run_input")
        .routes(http::routes)
        .failures(FailureEncoder {
            translate: to_run_input,
            encode,
            content_type: PROBLEM_JSON,
            schema: "RunInputProblem",
        })
        .security(SIGNATURE, Access::Signed, security)
        .section::<RunInputSection>()
        .section::<AttachmentsSection>()
        .section::<AutomationsSection>()
        .section::<SystemAgentsSection>()
        .section::<TranscriptionSection>()
        .capabilities(capabilities::CAPABILITIES)
        .shapes(shapes::SHAPES)
        .open(|opening| async move { Ok(States::new().with(RunInputState::open(&opening.config)?)) })
        .chore("erasing threads", |app| async move { threads::finish_all_erasing(&app).await })
        .chore("deleting unused attachments", |app| async move { attachments::sweep(&app).await.map(drop) })
        .worker(automations::scheduler::run)
        .pending_notices(|app, user_id| async move { automations::notices::pending(&app, &user_id).await })
        .topic(automations::PLANNED)
        .tool_source(CalendarSource::new())
        .mcp_tools(|config| config.section::<SystemAgentsSection>().mcp_tools())
        .user_chore(
            "deleting automations of removed users",
            |app| async move { automations::delete_orphaned(&app).await },
        )
        .user_chore(
            "deleting calendars of removed users",
            |app| async move { calendar_events::delete_orphaned(&app).await },
        )
        .pictures(|app, command| async move { attachments::of_command(&app, &command).await })
        .holdings(holdings::HOLDINGS)
        .retention(threads::retention())
        .retention(attachments::retention())
}

fn encode(problem: Problem) -> String {
    encoded(&RunInputProblem::from(problem))
}

fn security() -> SecurityScheme {
    let proof = "Signed by this server for one file, until `expires`.";
    SecurityScheme::ApiKey(ApiKey::Query(ApiKeyValue::with_description(SIGNATURE, proof)))
}
