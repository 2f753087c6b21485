//! Checks the server's capabilities before a command makes any other request. A server that lacks a required capability
//! is rejected by name; a different version gets a note on stderr. If the server does not respond here, the command itself
//! reports that, with more detail.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    capabilities::{ENVELOPE_VERSION, ProtocolVersion, SeenCapabilities},
};
use tokio::time::{Duration, timeout};

use crate::{errors, terminal::output};

/// The longest that this check delays a command.
const TIMEOUT: Duration = Duration::from_secs(5);
const OUR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Fails if the server lacks one of the `required` capabilities.
pub(crate) async fn preflight(client: &Client, required: &[&str]) -> Result<(), Failure> {
    let Ok(response) = timeout(TIMEOUT, client.capabilities()).await else { return Ok(()) };
    if let Some(note) = check(response, required)? {
        output::message(&note);
    }
    Ok(())
}

/// A failure if client and server are incompatible; a note if they are compatible but of different versions. Whether the
/// server can be reached, and whether it accepts the token, is not checked here.
pub(crate) fn check(response: Result<SeenCapabilities, Failure>, required: &[&str]) -> Result<Option<String>, Failure> {
    let server = match response {
        Ok(server) => server,
        Err(failure) if is_foreign(&failure) => return Err(foreign(&output::line(&failure.message, 300))),
        Err(failure) if failure.kind == FailureKind::NotFound => return Err(differs("an older one", "/capabilities")),
        Err(_) => return Ok(None),
    };
    let theirs = match &server.ostler_version {
        Some(version) => output::line(version, 40),
        None => "of an unknown version".into(),
    };
    match server.v {
        Some(ENVELOPE_VERSION) => {}
        Some(other) => {
            return Err(incompatible(&format!("its envelope is v{other}, this client reads v{ENVELOPE_VERSION}")));
        }
        None => return Err(foreign("its /capabilities have no version")),
    }
    if !server.may_speak(ProtocolVersion::CURRENT) {
        return Err(differs(&theirs, &format!("protocol {}", ProtocolVersion::CURRENT.as_str())));
    }
    let missing: Vec<_> = required.iter().copied().filter(|tag| !server.has(tag)).collect();
    if !missing.is_empty() {
        return Err(differs(&theirs, &missing.join(", ")));
    }
    if theirs == OUR_VERSION {
        return Ok(None);
    }
    Ok(Some(format!(
        "note: this is ostler {OUR_VERSION}, the server is {theirs}; it has every capability that this command requires\n"
    )))
}

/// Whether the response is not that of an Ostler server. Ostler reports every failure with a trace id; what a proxy in front of it
/// reports by itself has another status.
pub(crate) fn is_foreign(failure: &Failure) -> bool {
    use FailureKind::{BackendFailed, MethodNotAllowed, NotFound};
    let has_trace = failure.details.as_ref().is_some_and(|details| details.contains_key("traceId"));
    let is_unreadable = failure.broken_rule() == Some(Rule::AnswerUnknown);
    match failure.kind {
        BackendFailed => is_unreadable,
        NotFound | MethodNotAllowed => !has_trace,
        _ => false,
    }
}

/// Another program at this address: as if there were no server.
fn foreign(why: &str) -> Failure {
    errors::hinted(
        FailureKind::ServerUnreachable,
        format!("something responds at this address, but it is not Ostler: {why}"),
        "name Ostler's address with `--server`, `--context` or OSTLER_SERVER; `ostler doctor` checks the connection",
    )
}

fn incompatible(why: &str) -> Failure {
    errors::hinted(
        FailureKind::MethodNotAllowed,
        format!("the server at this address is not an Ostler that ostler {OUR_VERSION} can talk to: {why}"),
        "check the address, or run `ostler doctor`; client and server should be of the same version",
    )
}

fn differs(theirs: &str, missing: &str) -> Failure {
    errors::hinted(
        FailureKind::MethodNotAllowed,
        format!(
            "this is ostler {OUR_VERSION}, the server is {theirs}, and it lacks what this command requires: {missing}"
        ),
        "use the same version on both sides; `ostler --version` shows this one",
    )
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{
        capabilities::{Capabilities, Toggles},
        kernel::permissions::PermissionStrategy,
    };

    use super::*;
    use crate::commands::serve;

    fn server(version: &str) -> SeenCapabilities {
        let rows = serve::dialects();
        let strategy = PermissionStrategy::default();
        let sent = Capabilities::new(rows.capabilities(), Toggles::default(), strategy, "/".into(), version.into());
        serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap()
    }

    #[test]
    fn the_same_version_gets_no_note() {
        assert_eq!(check(Ok(server(OUR_VERSION)), &["ostler_runs"]).unwrap(), None);
    }

    #[test]
    fn another_compatible_version_gets_a_note() {
        let note = check(Ok(server("9.9.9")), &["ostler_runs"]).unwrap().unwrap();
        assert!(note.contains(OUR_VERSION) && note.contains("9.9.9"), "{note}");
    }

    #[test]
    fn a_missing_capability_is_named() {
        let mut older = server("0.0.1");
        older.features.retain(|tag| tag != "ostler_runs");
        let failure = check(Ok(older), &["health", "ostler_runs"]).unwrap_err();
        assert!(failure.message.contains("0.0.1") && failure.message.contains("ostler_runs"), "{failure}");
        assert!(!failure.message.contains("health"), "{failure}");
    }

    #[test]
    fn a_server_of_another_protocol_is_rejected() {
        let mut newer = server("9.9.9");
        newer.protocol_versions.as_mut().unwrap().supported = vec!["v2".into()];
        assert!(check(Ok(newer), &[]).unwrap_err().message.contains("protocol v1"));
    }

    #[test]
    fn a_server_without_protocol_versions_is_checked_by_its_features() {
        let plain = SeenCapabilities { protocol: None, protocol_versions: None, ..server(OUR_VERSION) };
        assert_eq!(check(Ok(plain), &["ostler_runs"]).unwrap(), None);
    }
}
