//! Routes of the run input dialect: `/api/v1/agent…` for chat front ends, automations and calendars.

mod attachments;
mod automations;
mod calendar_events;
mod history;
mod runs;
mod sessions;
mod transcription;

use axum::extract::DefaultBodyLimit;
use ostler_server::{app::App, net::api_router::ApiRouter, routes};

use self::attachments::FORM_BYTES_MAX;

/// The operations of the OpenAPI document.
pub(crate) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .routes(routes!(runs::create))
        .routes(routes!(runs::events))
        .routes(routes!(runs::cancel))
        .routes(routes!(attachments::create))
        .routes(routes!(attachments::sign))
        .routes(routes!(attachments::get))
        .routes(routes!(history::get))
        .routes(routes!(transcription::create))
        .routes(routes!(sessions::erase))
        .routes(routes!(automations::create, automations::list))
        .routes(routes!(automations::get, automations::update, automations::delete))
        .routes(routes!(automations::start))
        .routes(routes!(automations::list_starts))
        .routes(routes!(automations::next))
        .routes(routes!(calendar_events::create, calendar_events::list))
        .routes(routes!(calendar_events::occurrences))
        .routes(routes!(calendar_events::export))
        .routes(routes!(calendar_events::get, calendar_events::update, calendar_events::delete))
        .map(|router| router.layer(DefaultBodyLimit::max(FORM_BYTES_MAX)))
}
