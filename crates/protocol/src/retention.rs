//! Retention: how long the nouns of a server are kept, what a sweep removes, and legal holds, which win over every limit.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::{HoldId, SessionId, name},
    limits::HOLD_REASON_BYTES_MAX,
    problems::Problems,
};

/// The nouns that a limit can be set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetentionNoun {
    /// Payloads of the events of finished runs.
    Events,
    /// Threads of chat front ends.
    Threads,
    /// Webhook deliveries that have ended.
    WebhookDeliveries,
    /// Messages of the mesh.
    Messages,
    /// Pictures of messages.
    Attachments,
    /// Session storage.
    Storage,
}

enum_words!(RetentionNoun {
    Events => "events",
    Threads => "threads",
    WebhookDeliveries => "webhook_deliveries",
    Messages => "messages",
    Attachments => "attachments",
    Storage => "storage",
});

/// A noun of a tenant: its limit, and how much of it is older than that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionCount {
    pub noun: RetentionNoun,
    /// Null for what belongs to no tenant.
    pub tenant_id: Option<String>,
    /// Null: kept for ever.
    pub limit_ms: Option<i64>,
    /// Removed by the sweep, or, in a dry run, what it would remove.
    pub items: i64,
    /// Bytes of their contents. Indexes and free space come on top.
    pub bytes: i64,
    /// Older than the limit, and kept because of a hold.
    pub held: i64,
}

/// The limits in force, and what a sweep would remove now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionView {
    /// How often the server sweeps.
    pub sweep_ms: u64,
    pub counts: Vec<RetentionCount>,
    /// There is more than was counted.
    pub has_more: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct SweepRetention {
    /// Count only, remove nothing.
    pub dry_run: bool,
    /// Only this tenant. What belongs to no tenant is left out then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Only this noun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noun: Option<RetentionNoun>,
}

impl SweepRetention {
    pub fn check(&self) -> Result<(), Failure> {
        self.tenant_id.as_deref().map(|tenant| name("tenantId", tenant)).transpose().map(drop)
    }
}

/// What a sweep removed or would remove.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionSweep {
    pub dry_run: bool,
    pub counts: Vec<RetentionCount>,
    /// A sweep does a bounded number of steps; the same request again continues. Also true while freed space is still to be
    /// returned to the file system.
    pub has_more: bool,
}

/// A legal hold: what it covers is not removed before it is released.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    pub hold_id: HoldId,
    pub tenant_id: Option<String>,
    /// Our own id of the session.
    #[serde(skip)]
    pub session: Option<SessionId>,
    /// Only this session of the tenant.
    pub session_id: Option<String>,
    /// Messages from and to this identity of the mesh.
    pub identity: Option<String>,
    pub reason: String,
    pub placed_by: String,
    #[schema(value_type = String, format = DateTime)]
    pub placed_at: Timestamp,
    pub released_by: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub released_at: Option<Timestamp>,
}

/// A hold covers a tenant, a session of a tenant, or an identity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PlaceHold {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Only this session of the tenant. Without a tenant, the session must be the only one of this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// An identity of the mesh, instead of a tenant or session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Why, for the people who later decide whether to release it.
    pub reason: String,
}

impl PlaceHold {
    pub fn check(&self) -> Result<(), Failure> {
        let mut problems = Problems::default();
        for (field, value) in [("tenantId", &self.tenant_id), ("identity", &self.identity)] {
            problems.note(value.as_deref().map(|value| name(field, value)).transpose());
        }
        if self.identity.is_some() == (self.tenant_id.is_some() || self.session_id.is_some()) {
            let message = "a hold covers a tenant (tenantId), a session (sessionId) or an identity (identity)";
            problems.note::<()>(Err(Failure::rule(Rule::HoldTarget, message)));
        }
        let reason = &self.reason;
        let fits = !reason.is_empty() && reason.len() <= HOLD_REASON_BYTES_MAX && reason.trim() == reason;
        if !fits || reason.chars().any(char::is_control) {
            let message =
                format!("reason must be 1 to {HOLD_REASON_BYTES_MAX} printable bytes without spaces at its ends");
            problems.note::<()>(Err(Failure::rule(Rule::HoldReason, message)));
        }
        problems.check()
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListHolds {
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HoldPage {
    pub holds: Vec<Hold>,
    pub next_cursor: Option<String>,
}

/// The failure to delete what a hold covers.
pub fn under_hold(what: &str) -> Failure {
    Failure::rule(Rule::LegalHold, format!("{what} is under a legal hold and cannot be deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(tenant_id: Option<&str>, session_id: Option<&str>, identity: Option<&str>, reason: &str) -> PlaceHold {
        let own = |text: Option<&str>| text.map(str::to_owned);
        PlaceHold {
            tenant_id: own(tenant_id),
            session_id: own(session_id),
            identity: own(identity),
            reason: reason.into(),
        }
    }

    #[test]
    fn a_hold_covers_one_thing_and_has_a_reason() {
        for good in [
            hold(Some("hwlab"), None, None, "case 7"),
            hold(Some("hwlab"), Some("s"), None, "case 7"),
            hold(None, Some("s"), None, "case 7"),
            hold(None, None, Some("a.b.example"), &"x".repeat(HOLD_REASON_BYTES_MAX)),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
        for bad in [
            hold(None, None, None, "case 7"),
            hold(Some("hwlab"), None, Some("a.b.example"), "case 7"),
            hold(Some("hwlab"), None, None, " "),
            hold(Some("hwlab"), None, None, "a\nb"),
            hold(Some("hwlab"), None, None, &"x".repeat(HOLD_REASON_BYTES_MAX + 1)),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_noun_has_one_name_on_the_wire_and_in_the_configuration() {
        for noun in RetentionNoun::ALL {
            assert_eq!(serde_json::to_value(noun).unwrap(), noun.as_str());
            assert_eq!(RetentionNoun::parse(noun.as_str()), Some(noun));
        }
    }
}
