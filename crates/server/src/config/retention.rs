//! How long the server keeps what it stores, per noun and tenant.

use std::collections::BTreeMap;

use ostler_protocol::{Failure, Rule, kernel::policy::TenantPolicy, retention::RetentionNoun};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::places::KEY;

/// A hundred years in milliseconds.
const LIMIT_MS_MAX: i64 = 3_155_760_000_000;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSection {
    /// How long the payloads of a finished run's events are kept after its end; if unset, for ever. Digests stay.
    pub events_ms: Option<i64>,
    /// How long a thread is kept after its last change; if unset, for ever. Then it is erased.
    pub threads_ms: Option<i64>,
    /// How long webhook deliveries are kept after they ended; at most, and if unset, 30 days.
    pub webhook_deliveries_ms: Option<i64>,
    /// How long messages of the mesh are kept after they were sent; at most, and if unset, 24 hours.
    pub messages_ms: Option<i64>,
    /// How long pictures are kept after their upload; if unset, as long as their thread.
    pub attachments_ms: Option<i64>,
    /// How long a session's storage is kept after the session's last change; if unset, `sessions.storage_ttl_ms`
    /// applies alone.
    pub storage_ms: Option<i64>,
    /// How often the server removes what is older than its limit.
    pub sweep_ms: u64,
    /// Maximum number of rows that one step of a sweep removes, and of SQLite pages (256 at most) that one step returns to
    /// the file system.
    pub step_rows: u32,
    /// Pause between two steps of a sweep.
    pub pause_ms: u64,
    /// Limits of single tenants, which replace those above: `[retention.tenants.NAME]`, in the environment a JSON
    /// object.
    pub tenants: BTreeMap<String, TenantRetention>,
}

/// The limits of one tenant. Messages of the mesh belong to no tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantRetention {
    pub events_ms: Option<i64>,
    pub threads_ms: Option<i64>,
    pub webhook_deliveries_ms: Option<i64>,
    pub attachments_ms: Option<i64>,
    pub storage_ms: Option<i64>,
}

impl Default for RetentionSection {
    fn default() -> Self {
        Self {
            events_ms: None,
            threads_ms: None,
            webhook_deliveries_ms: None,
            messages_ms: None,
            attachments_ms: None,
            storage_ms: None,
            sweep_ms: 3_600_000,
            step_rows: 500,
            pause_ms: 20,
            tenants: BTreeMap::new(),
        }
    }
}

impl RetentionSection {
    /// The limit of a noun of a tenant. `None`: there is none.
    pub fn limit_ms(&self, noun: RetentionNoun, tenant_id: Option<&str>) -> Option<i64> {
        let own = tenant_id.and_then(|tenant| self.tenants.get(tenant)).and_then(|own| own.limit_ms(noun));
        own.or(match noun {
            RetentionNoun::Events => self.events_ms,
            RetentionNoun::Threads => self.threads_ms,
            RetentionNoun::WebhookDeliveries => self.webhook_deliveries_ms,
            RetentionNoun::Messages => self.messages_ms,
            RetentionNoun::Attachments => self.attachments_ms,
            RetentionNoun::Storage => self.storage_ms,
        })
    }

    /// Limits that are not positive, and tenants that the server does not know: such a limit would have no effect.
    pub(super) fn problems(&self, policy: &TenantPolicy) -> Vec<Failure> {
        let mut problems = vec![];
        for noun in RetentionNoun::ALL {
            problems.extend(check_limit("retention", noun, self.limit_ms(noun, None)).err());
            for (tenant, own) in &self.tenants {
                problems.extend(check_limit(&format!("retention.tenants.{tenant}"), noun, own.limit_ms(noun)).err());
            }
        }
        for tenant in self.tenants.keys().filter(|tenant| !policy.tenants.contains(tenant)) {
            let (key, known) = (format!("retention.tenants.{tenant}"), policy.tenants.join(", "));
            let message = format!("{key}: there is no such tenant; policy.tenants has {known}");
            problems.push(Failure::invalid(Rule::Config, message).detail(KEY, key));
        }
        problems
    }
}

impl TenantRetention {
    fn limit_ms(&self, noun: RetentionNoun) -> Option<i64> {
        match noun {
            RetentionNoun::Events => self.events_ms,
            RetentionNoun::Threads => self.threads_ms,
            RetentionNoun::WebhookDeliveries => self.webhook_deliveries_ms,
            RetentionNoun::Messages => None,
            RetentionNoun::Attachments => self.attachments_ms,
            RetentionNoun::Storage => self.storage_ms,
        }
    }
}

fn check_limit(section: &str, noun: RetentionNoun, limit_ms: Option<i64>) -> Result<(), Failure> {
    if limit_ms.is_none_or(|limit| (1..=LIMIT_MS_MAX).contains(&limit)) {
        return Ok(());
    }
    let key = format!("{section}.{}_ms", noun.as_str());
    Err(Failure::invalid(Rule::Config, format!("{key} must be 1 to {LIMIT_MS_MAX}")).detail(KEY, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> Result<Config, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ostler.toml");
        std::fs::write(&file, text).unwrap();
        let config = Config::read(Some(&file), std::iter::empty(), &[], &[])?;
        Failure::check_all(config.retention.problems(&config.policy)).map(|()| config)
    }

    #[test]
    fn a_tenants_own_limit_replaces_the_general_one() {
        let config =
            read("[retention]\nevents_ms = 1000\nthreads_ms = 2000\n[retention.tenants.hwlab]\nevents_ms = 5000\n")
                .unwrap();
        let limit = |noun, tenant| config.retention.limit_ms(noun, tenant);
        assert_eq!(limit(RetentionNoun::Events, Some("hwlab")), Some(5000));
        assert_eq!(limit(RetentionNoun::Events, Some("local")), Some(1000));
        assert_eq!(limit(RetentionNoun::Threads, Some("hwlab")), Some(2000));
        assert_eq!(limit(RetentionNoun::Storage, Some("hwlab")), None);
    }

    #[test]
    fn an_unknown_noun_is_rejected_with_those_that_may_be_meant() {
        let message = read("[retention]\nevent_ms = 1\n").unwrap_err().message;
        assert!(message.contains("did you mean retention.events_ms?"), "{message}");
        let message = read("[retention.tenants.hwlab]\nmessages_ms = 1\n").unwrap_err().message;
        assert!(message.contains("events_ms") && message.contains("storage_ms"), "{message}");
    }

    #[test]
    fn a_limit_is_positive_and_its_tenant_exists() {
        for (text, named) in [
            ("[retention]\nevents_ms = 0\n", "retention.events_ms must be 1"),
            ("[retention.tenants.hwlab]\nstorage_ms = -1\n", "retention.tenants.hwlab.storage_ms"),
            ("[retention.tenants.hwlap]\nstorage_ms = 1\n", "policy.tenants has"),
        ] {
            let message = read(text).unwrap_err().message;
            assert!(message.contains(named), "{message}");
        }
    }
}
