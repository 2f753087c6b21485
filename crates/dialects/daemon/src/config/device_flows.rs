//! Configuration of device flows.

use std::collections::BTreeMap;

use ostler_protocol::{Failure, Rule, daemon::device_flows::is_safe_url, ids::slug};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of providers with a device flow.
const PROVIDERS_MAX: usize = 32;
const PROVIDER_ID_BYTES_MAX: usize = 64;
const CLIENT_ID_BYTES_MAX: usize = 512;
const SCOPE_BYTES_MAX: usize = 1_024;

/// How a person authorises this server at one provider (RFC 8628).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceFlowSection {
    /// Where codes are requested: https, or http on this machine.
    pub device_authorization_url: String,
    /// Where the token is requested: https, or http on this machine.
    pub token_url: String,
    /// The id of this server at the provider.
    pub client_id: String,
    /// The scope to request. Unset: the provider's default.
    pub scope: Option<String>,
    /// The backend profile whose credential the token becomes. It must have a config.
    pub profile: String,
    /// Whether the request for the token is bound to the request for codes (PKCE, RFC 7636).
    pub pkce: bool,
}

/// What cannot work.
pub(super) fn problems(sections: &BTreeMap<String, DeviceFlowSection>) -> Vec<Failure> {
    let problem =
        |key: String, message: &str| Failure::invalid(Rule::Config, format!("{key} {message}")).detail("key", key);
    let mut problems = vec![];
    if sections.len() > PROVIDERS_MAX {
        let message = format!("must have at most {PROVIDERS_MAX} providers");
        problems.push(problem("daemon.device_flows".to_owned(), &message));
    }
    for (provider_id, section) in sections {
        let key = |name: &str| format!("daemon.device_flows.{provider_id}{name}");
        if !is_provider_id(provider_id) {
            problems.push(problem(key(""), "must be named with letters, digits, dots, dashes and underscores"));
        }
        let urls =
            [(".device_authorization_url", &section.device_authorization_url), (".token_url", &section.token_url)];
        for (name, _) in urls.into_iter().filter(|(_, url)| !is_safe_url(url)) {
            problems.push(problem(key(name), "must be an https URL, or http on this machine"));
        }
        if !is_printable(&section.client_id, CLIENT_ID_BYTES_MAX) {
            problems.push(problem(key(".client_id"), "must be set, in printable ASCII"));
        }
        if section.scope.as_ref().is_some_and(|scope| !is_printable(scope, SCOPE_BYTES_MAX)) {
            problems.push(problem(key(".scope"), "must be printable ASCII"));
        }
        if slug("profile", &section.profile).is_err() {
            problems.push(problem(key(".profile"), "must be the name of a backend profile"));
        }
    }
    problems
}

fn is_provider_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=PROVIDER_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_printable(text: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> DeviceFlowSection {
        DeviceFlowSection {
            device_authorization_url: "https://id.example/device".into(),
            token_url: "https://id.example/token".into(),
            client_id: "ostler".into(),
            scope: Some("openid model".into()),
            profile: "model".into(),
            pkce: true,
        }
    }

    fn keys(provider_id: &str, section: DeviceFlowSection) -> Vec<String> {
        let sections = [(provider_id.to_owned(), section)].into();
        problems(&sections).iter().map(|problem| problem.message.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_value_that_cannot_work_is_named() {
        assert_eq!(keys("qwen-oauth", good()), [""; 0]);
        let plain = DeviceFlowSection { token_url: "http://id.example/token".into(), ..good() };
        assert_eq!(keys("a", plain), ["daemon.device_flows.a.token_url"]);
        assert_eq!(keys("a b", good()).len(), 1);
        let empty = ["device_authorization_url", "token_url", "client_id", "profile"];
        assert_eq!(keys("a", DeviceFlowSection::default()), empty.map(|name| format!("daemon.device_flows.a.{name}")));
        let scope = DeviceFlowSection { scope: Some("a\nb".into()), ..good() };
        assert_eq!(keys("a", scope), ["daemon.device_flows.a.scope"]);
    }
}
