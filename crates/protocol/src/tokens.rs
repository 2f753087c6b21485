//! Service tokens: what a platform or a pool of runners presents to be authenticated. The token itself is returned
//! once, to the client that creates it; this is what can be read of it afterwards.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::{TokenId, name},
    limits::{CALLER_TENANTS_MAX, TOKEN_LIFE_MS_MAX},
    problems::Problems,
};

/// What a service may do in its tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenRole {
    /// Ask for work, follow it, stop it.
    Client,
    /// Carry work out.
    Runner,
    /// Write provider profiles: those of its tenants, or, without a tenant, the operator's.
    Provide,
    /// Read the metrics of the server, and nothing else. It has no tenant.
    Metrics,
}

enum_words!(TokenRole {
    Client => "client",
    Runner => "runner",
    Provide => "provide",
    Metrics => "metrics",
});

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceToken {
    pub token_id: TokenId,
    /// What people call it; it need not be unique.
    pub name: String,
    pub role: TokenRole,
    pub tenants: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<Timestamp>,
}

impl ServiceToken {
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CreateToken {
    pub name: String,
    pub role: TokenRole,
    /// At least one; a token of the role `provide` without a tenant is for the operator's profiles, and one of the role `metrics`
    /// has none.
    pub tenants: Vec<String>,
    /// Left out: it lasts until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
    /// The same key again makes no second token; nor can it show the first one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl CreateToken {
    /// Checks the shape; only the server knows whether the tenants exist.
    pub fn check(&self) -> Result<(), Failure> {
        let mut problems = Problems::default();
        problems.note(name("name", &self.name));
        problems.note(match self.role {
            TokenRole::Provide | TokenRole::Metrics if self.tenants.is_empty() => Ok(()),
            TokenRole::Metrics => Err(Failure::invalid(Rule::Tenants, "a token of the role metrics has no tenants")),
            TokenRole::Client | TokenRole::Runner | TokenRole::Provide => check_tenants(&self.tenants),
        });
        problems.note(self.expires_in_ms.map(check_life).transpose());
        problems.check()
    }
}

/// The answer to a create: the only time the token itself is shown.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    #[serde(flatten)]
    pub service_token: ServiceToken,
    pub token: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListTokens {
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenPage {
    pub tokens: Vec<ServiceToken>,
    pub next_cursor: Option<String>,
}

/// The tenants a caller is let into: at least one, each named once.
pub fn check_tenants(tenants: &[String]) -> Result<(), Failure> {
    if tenants.is_empty() || tenants.len() > CALLER_TENANTS_MAX {
        return Err(Failure::invalid(Rule::Tenants, format!("tenants must name 1 to {CALLER_TENANTS_MAX}")));
    }
    for (index, tenant) in tenants.iter().enumerate() {
        name("tenants", tenant)?;
        if tenants[..index].contains(tenant) {
            return Err(Failure::invalid(Rule::Tenants, format!("tenants names {tenant:?} twice")));
        }
    }
    Ok(())
}

pub fn check_life(ms: i64) -> Result<i64, Failure> {
    match ms {
        1..=TOKEN_LIFE_MS_MAX => Ok(ms),
        _ => Err(Failure::invalid(Rule::ExpiresIn, format!("expiresInMs must be 1 to {TOKEN_LIFE_MS_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tenants: &[&str], expires_in_ms: Option<i64>) -> CreateToken {
        let tenants = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        CreateToken { name: "ci".into(), role: TokenRole::Client, tenants, expires_in_ms, idempotency_key: None }
    }

    #[test]
    fn a_token_is_for_named_tenants_and_a_bounded_time() {
        assert!(request(&["a", "b"], None).check().is_ok());
        assert!(request(&["a"], Some(TOKEN_LIFE_MS_MAX)).check().is_ok());
        for bad in [request(&[], None), request(&["a", "a"], None), request(&["a"], Some(0))] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(request(&["a"], Some(TOKEN_LIFE_MS_MAX + 1)).check().is_err());
        let provide = |tenants: &[&str]| CreateToken { role: TokenRole::Provide, ..request(tenants, None) };
        assert!(provide(&[]).check().is_ok() && provide(&["a"]).check().is_ok());
        assert!(provide(&["a", "a"]).check().is_err());
        let metrics = |tenants: &[&str]| CreateToken { role: TokenRole::Metrics, ..request(tenants, None) };
        assert!(metrics(&[]).check().is_ok() && metrics(&["a"]).check().is_err());
    }
}
