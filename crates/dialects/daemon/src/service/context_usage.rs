//! How much of its model's context window a session takes.

use ostler_protocol::{
    Failure,
    daemon::context_usage::{CallUsage, ContextFacts, ContextUsage, SessionContextUsage},
    kernel::events::EventType,
    limits::CONVERSATION_EVENTS_MAX,
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{
        conversation,
        provider_profiles::{self, ModelFacts},
    },
};
use ostler_store as store;

use super::{lookup, memory, models::STATUS_VERSION, sessions::current_model};

pub(crate) async fn get(
    app: &App,
    caller: &Principal,
    id: &str,
    has_details: bool,
) -> Result<SessionContextUsage, Failure> {
    let open = lookup::open_session(app, caller, id).await?;
    let (session, profile) = (open.session.session, current_model(app, &open));
    let ModelFacts { name, context_window } =
        provider_profiles::model_facts(app, &open.session.tenant_id, &profile).await?;
    let messages = conversation::of_session(app, session).await?.messages;
    let newest = store::kernel::events::list_newest(&app.db, session, &[EventType::Usage], CONVERSATION_EVENTS_MAX, 1);
    let usage = newest.await?.events.pop().and_then(|event| serde_json::from_str(event.payload.as_deref()?).ok());
    let usage: CallUsage = usage.unwrap_or_default();
    let facts = ContextFacts {
        model_name: usage.model.or(name).unwrap_or(profile),
        context_window,
        input_tokens: usage.input_tokens,
        cached_tokens: usage.cached_input_tokens.unwrap_or(0),
        memory_files: memory::sizes(app).await,
        message_bytes: messages.iter().map(|message| message.text.len() as u64).sum(),
    };
    let usage = ContextUsage::of(facts, has_details);
    let formatted_text = usage.text();
    let (session_id, workspace_cwd) = (open.session.public_id(), open.daemon.workspace);
    Ok(SessionContextUsage { v: STATUS_VERSION, session_id, workspace_cwd, usage, formatted_text })
}
