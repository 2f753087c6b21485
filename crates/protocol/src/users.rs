//! Users: people, with the tenants they belong to and the time zone they live in. A user is known by a subject of an
//! issuer: of this server, which then makes their tokens, or of one outside.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::{UserId, name},
    limits::USER_TOKEN_LIFE_MS_MAX,
    problems::Problems,
    tokens::check_tenants,
};

/// The issuer, and the audience, of the tokens we make ourselves.
pub const OWN_ISSUER: &str = "ostler";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub user_id: UserId,
    pub name: String,
    pub tenants: Vec<String>,
    /// A name of the time zone database, such as `Europe/Berlin`.
    pub timezone: String,
    /// Who vouches for this user: `ostler`, or an issuer of the configuration.
    pub issuer: String,
    pub subject: String,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub removed_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateUser {
    pub name: String,
    pub timezone: String,
    /// Left out: `local`.
    #[serde(default = "local")]
    pub tenants: Vec<String>,
    /// An issuer of the configuration that vouches for this user; left out, this server does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// The `sub` of the issuer's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

pub fn local() -> Vec<String> {
    vec!["local".into()]
}

impl CreateUser {
    /// Checks the shape and answers the time zone as it is properly written.
    pub fn check(&self) -> Result<String, Failure> {
        let mut problems = Problems::default();
        problems.note(name("name", &self.name));
        problems.note(check_tenants(&self.tenants));
        problems.note(match (&self.issuer, &self.subject) {
            (None, None) => Ok(()),
            (Some(_), Some(subject)) => name("subject", subject).map(drop),
            _ => Err(Failure::invalid(Rule::UserSubject, "issuer and subject are given together or not at all")),
        });
        let timezone = problems.note(timezone(&self.timezone)).unwrap_or_default();
        problems.check().map(|()| timezone)
    }
}

/// What can be changed about a user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateUser {
    /// A name of the time zone database, such as `Europe/Berlin`.
    pub timezone: String,
}

impl UpdateUser {
    /// Returns the time zone as the database writes its name.
    pub fn check(&self) -> Result<String, Failure> {
        timezone(&self.timezone)
    }
}

fn timezone(text: &str) -> Result<String, Failure> {
    let found = jiff::tz::TimeZoneDatabase::bundled().get(text).ok();
    found.and_then(|zone| zone.iana_name().map(str::to_owned)).ok_or_else(|| {
        let message = format!("{text:?} is no time zone; one looks like Europe/Berlin");
        Failure::invalid(Rule::Timezone, message)
    })
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct CreateUserToken {
    /// How long it is good for; 12 hours when left out, 30 days at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<i64>,
}

impl CreateUserToken {
    pub fn life_ms(&self) -> Result<i64, Failure> {
        match self.expires_in_ms.unwrap_or(crate::limits::USER_TOKEN_LIFE_MS_DEFAULT) {
            ms @ 1..=USER_TOKEN_LIFE_MS_MAX => Ok(ms),
            _ => Err(Failure::invalid(Rule::ExpiresIn, format!("expiresInMs must be 1 to {USER_TOKEN_LIFE_MS_MAX}"))),
        }
    }
}

/// A token of a user, made and signed by this server. It is not kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserToken {
    pub user_id: UserId,
    pub token: String,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListUsers {
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserPage {
    pub users: Vec<User>,
    pub next_cursor: Option<String>,
}

/// Public keys of this store's servers, as RFC 7517 writes them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeySet {
    #[schema(value_type = Vec<Object>)]
    pub keys: Vec<serde_json::Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_zone_is_one_of_the_database() {
        assert_eq!(timezone("Europe/Berlin").unwrap(), "Europe/Berlin");
        assert_eq!(timezone("europe/berlin").unwrap(), "Europe/Berlin");
        for bad in ["", "Berlin", "Mars/Olympus", "../etc/passwd", "+02:00"] {
            assert_eq!(timezone(bad).unwrap_err().rule_name(), Some("timezone"), "{bad}");
        }
    }

    #[test]
    fn an_outside_user_has_an_issuer_and_a_subject() {
        let mut user =
            CreateUser { name: "ada".into(), timezone: "UTC".into(), tenants: local(), issuer: None, subject: None };
        assert!(user.check().is_ok());
        user.issuer = Some("https://id.example".into());
        assert!(user.check().is_err());
        user.subject = Some("7".into());
        assert!(user.check().is_ok());
    }
}
