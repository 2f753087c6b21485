//! Who a profile belongs to, and under which name its secret is stored.

use super::{SECRET_PREFIX, secret_name, unavailable};
use crate::{Failure, Rule, json::hex, sha256::sha256};

/// Hexadecimal digits of a tenant's hash in the names of its stored secrets.
const TENANT_DIGITS: usize = 32;

/// The owner of a profile. Runs of every tenant may use the operator's profiles; a tenant's are for its own runs only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileOwner {
    Operator,
    Tenant(String),
}

impl ProfileOwner {
    /// The tenant if one is named, otherwise the operator.
    pub fn of(tenant_id: Option<&str>) -> Self {
        tenant_id.map_or(Self::Operator, |tenant_id| Self::Tenant(tenant_id.to_owned()))
    }

    pub fn tenant_id(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Tenant(tenant_id) => Some(tenant_id),
        }
    }

    /// The option that names the owner in a command, with a space before it. Empty for the operator.
    pub(super) fn command_option(&self) -> String {
        let Some(tenant_id) = self.tenant_id() else { return String::new() };
        let mark = if tenant_id.starts_with('-') { '=' } else { ' ' };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.:-_@%+=,".contains(c);
        match !tenant_id.is_empty() && !tenant_id.starts_with('=') && tenant_id.chars().all(is_plain) {
            true => format!(" --tenant{mark}{tenant_id}"),
            false => format!(" --tenant{mark}'{}'", tenant_id.replace('\'', r"'\''")),
        }
    }

    /// A failure about the owner's profile, with the details from which a client makes the command that mends it.
    pub fn unavailable(&self, rule: Rule, profile: &str, message: impl Into<String>) -> Failure {
        let failure = unavailable(rule, profile, message);
        match self.tenant_id() {
            Some(tenant_id) => failure.detail("tenantId", tenant_id),
            None => failure,
        }
    }

    /// The name under which the secret of `profile` is stored and sealed. Two owners never share one, so a stored secret
    /// that is moved from one owner's name to another's cannot be opened.
    pub fn stored_name(&self, profile: &str) -> String {
        match self {
            Self::Operator => secret_name(profile),
            Self::Tenant(_) => format!("{}{profile}", self.prefix()),
        }
    }

    /// The profile whose secret is stored under this name, if it is one of this owner's.
    pub fn profile_of<'a>(&self, stored_name: &'a str) -> Option<&'a str> {
        stored_name.strip_prefix(self.prefix().as_str())
    }

    /// A tenant's name may hold any printable character and be longer than a file name, so its hash is used instead.
    fn prefix(&self) -> String {
        match self {
            Self::Operator => SECRET_PREFIX.to_owned(),
            Self::Tenant(tenant_id) => {
                let hash = hex(&sha256(tenant_id.as_bytes()));
                format!("agentrun-v01-tenant-{}-", &hash[..TENANT_DIGITS])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_tenant_as_one_word() {
        for (tenant_id, option) in [
            (None, ""),
            (Some("acme-2"), " --tenant acme-2"),
            (Some("-x"), " --tenant=-x"),
            (Some("a b; id"), " --tenant 'a b; id'"),
            (Some("it's"), r" --tenant 'it'\''s'"),
        ] {
            assert_eq!(ProfileOwner::of(tenant_id).command_option(), option);
        }
    }

    #[test]
    fn no_two_owners_share_a_stored_name() {
        let owners = [ProfileOwner::Operator, ProfileOwner::of(Some("a")), ProfileOwner::of(Some("a-provider"))];
        for (at, owner) in owners.iter().enumerate() {
            let name = owner.stored_name("mine");
            assert_eq!(owner.profile_of(&name), Some("mine"));
            assert!(owners.iter().enumerate().all(|(other, owner)| other == at || owner.profile_of(&name).is_none()));
            assert!(
                name.len() < 200 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
        }
        assert_eq!(ProfileOwner::Operator.stored_name("codex"), "agentrun-v01-provider-codex", "as it always was");
        let odd = ProfileOwner::of(Some("../../etc/\u{fc}"));
        assert!(!odd.stored_name("mine").contains(['/', '.']));
    }
}
