//! The languages of a session.

use ostler_protocol::{
    Failure,
    daemon::languages::{LanguageSet, SetLanguage},
};
use ostler_server::{app::App, auth::Principal};
use ostler_store as store;
use serde_json::json;

use super::{
    lookup,
    notes::{self, Note},
};

/// Sets the language that clients show and, if it is to be the same, the one that the agent replies in.
pub(crate) async fn set(
    app: &App,
    caller: &Principal,
    id: &str,
    client: Option<&str>,
    request: &SetLanguage,
) -> Result<LanguageSet, Failure> {
    let open = lookup::controlled_session(app, caller, id, client).await?;
    let (language, sync) = request.read()?;
    let session = open.session.session;
    let output_language = sync.then(|| language.to_owned());
    let stored = output_language.as_deref().or(open.daemon.output_language.as_deref());
    store::daemon::sessions::update_language(&app.db, session, language, stored).await?;
    let data = json!({"sessionId": id, "language": language, "outputLanguage": output_language,
        "refreshed": sync});
    let note = Note { frame: "language_changed", data, client: client.map(str::to_owned) };
    notes::record(app, caller, session, &note).await?;
    Ok(LanguageSet { language: language.to_owned(), output_language, refreshed: sync })
}
