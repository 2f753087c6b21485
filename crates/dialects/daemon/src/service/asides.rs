//! Questions beside a session, which leave no trace in it.

use ostler_protocol::{
    Failure,
    daemon::asides::{
        AskBtw, BTW_INSTRUCTION, BtwAnswer, RECAP_INSTRUCTION, RECAP_MESSAGES_MAX, RECAP_MESSAGES_MIN, RECAP_QUESTION,
        SessionRecap, recap_in,
    },
};
use ostler_server::{
    app::App,
    auth::Principal,
    service::{
        conversation,
        side_queries::{self, QueriedBackend, SideAnswer, SideQuery},
    },
};

use super::{
    lookup::{self, OpenSession},
    sessions::current_model,
};

/// Where the work of the session is. A backend that fails is as good as one that has no recap.
pub(crate) async fn recap(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
) -> Result<SessionRecap, Failure> {
    app.accepting()?;
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let mut messages = conversation::of_session(app, open.session.session).await?.messages;
    let recap = match messages.len() {
        ..RECAP_MESSAGES_MIN => None,
        count => {
            let conversation = messages.split_off(count.saturating_sub(RECAP_MESSAGES_MAX));
            let query = SideQuery {
                conversation,
                instruction: RECAP_INSTRUCTION.to_owned(),
                question: RECAP_QUESTION.to_owned(),
            };
            match ask(app, caller, &open, &query).await? {
                SideAnswer::Answered(answer) => answer.as_deref().and_then(recap_in),
                SideAnswer::Failed(_) => None,
            }
        }
    };
    Ok(SessionRecap { session_id: open.session.public_id(), recap })
}

/// Answers a question from the session's conversation.
pub(crate) async fn btw(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &AskBtw,
) -> Result<BtwAnswer, Failure> {
    app.accepting()?;
    let question = request.question()?.to_owned();
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let conversation = conversation::of_session(app, open.session.session).await?.messages;
    let query = SideQuery { conversation, instruction: BTW_INSTRUCTION.to_owned(), question };
    let answer = match ask(app, caller, &open, &query).await? {
        SideAnswer::Answered(answer) => answer,
        SideAnswer::Failed(failure) => return Err(failure),
    };
    Ok(BtwAnswer { session_id: open.session.public_id(), answer })
}

async fn ask(app: &App, caller: &Principal, open: &OpenSession, query: &SideQuery) -> Result<SideAnswer, Failure> {
    let profile = current_model(app, open);
    let backend = QueriedBackend { tenant_id: &open.session.tenant_id, profile: &profile };
    side_queries::ask(app, caller, backend, query).await
}
