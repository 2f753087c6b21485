//! Notices to users: what waits for them in the nouns of one dialect, and is sent to them by another one that has their connections.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::Failure;
use serde_json::Value;

use crate::app::App;

pub(crate) type PendingNotices =
    Arc<dyn Fn(App, String) -> BoxFuture<'static, Result<Vec<PersonNotice>, Failure>> + Send + Sync>;
pub(crate) type NotifyPerson = fn(&App, &str);

/// Something that waits for a user, until the user has acted on it.
#[derive(Clone, Debug, PartialEq)]
pub struct PersonNotice {
    /// What it is about, such as the id of a noun. A later notice replaces an earlier one of the same subject.
    pub subject: String,
    /// A later notice of the subject has a higher number.
    pub number: i64,
    /// As the user's clients receive it: `{"type", "payload"}`.
    pub frame: Value,
}
