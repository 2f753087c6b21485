//! Notices to owners about automations that the server has paused. A notice is pending until the owner resumes, pauses or deletes the
//! automation, so that an owner who is not connected receives it later.

use ostler_protocol::{Failure, run_input::automations::Automation};
use ostler_server::{
    app::App,
    dialect::{Dialects, PersonNotice},
};
use ostler_store as store;
use serde_json::json;

/// Paused automations that one owner is notified of at once.
const NOTICES_MAX: u32 = 100;
/// The type of the frame that the owner receives.
const AUTOMATION_PAUSED: &str = "automation.paused";

/// The automations of this user that the server has paused.
pub(crate) async fn pending(app: &App, user_id: &str) -> Result<Vec<PersonNotice>, Failure> {
    let paused = store::run_input::automations::list_paused_by_server(&app.db, user_id, NOTICES_MAX).await?;
    Ok(paused.iter().map(notice).collect())
}

/// Notifies the owner of an automation that was paused.
pub(super) fn notify_owner(app: &App, automation: &Automation) {
    Dialects::notify_person(app, &automation.owner_id);
}

fn notice(automation: &Automation) -> PersonNotice {
    let payload = json!({
        "automation_id": automation.id,
        "title": automation.title,
        "reason": automation.disabled_reason,
        "failures": automation.failures,
        "updated_at": automation.updated_at,
    });
    PersonNotice {
        subject: automation.id.to_string(),
        // A request to start the automation raises its revision; the pause is the same one.
        number: automation.updated_at.as_microsecond(),
        frame: json!({"type": AUTOMATION_PAUSED, "payload": payload}),
    }
}
