//! The secret of a profile, wherever it is stored.

use ostler_protocol::{Failure, Rule, Timestamp, kernel::provider_profiles::Credential};

/// The secret of one profile.
#[derive(Clone, Debug)]
pub struct Secret {
    /// Changes with every change; has no other meaning.
    pub resource_version: String,
    pub updated_at: Timestamp,
    pub credential: Credential,
    /// A credential was removed because the config names another destination, and none was set since.
    pub credential_dropped: bool,
}

/// The failure for a secret that exists and cannot be opened: to its users it is unavailable.
pub(super) fn damaged(name: &str) -> Failure {
    let message = format!(
        "the secret {name} cannot be opened: it is damaged, or was sealed under another key; delete the profile and set it again"
    );
    Failure::rule(Rule::SecretDamaged, message)
}
