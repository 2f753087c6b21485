//! What the server can be relied on for, asked before a command asks for anything else. A server that lacks what the
//! command needs is named with what it lacks; one of another version gets a word on stderr. A server that does not answer
//! here is left to the command itself, which says it better.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    capabilities::{Capabilities, ENVELOPE_VERSION, ProtocolVersion},
};
use tokio::time::{Duration, timeout};

use crate::{errors, output};

/// How long a command that could also just try is held up.
const PATIENCE: Duration = Duration::from_secs(5);
const OUR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Refuses a command whose `needs` this server does not have.
pub async fn preflight(client: &Client, needs: &[&str]) -> Result<(), Failure> {
    let Ok(answer) = timeout(PATIENCE, client.capabilities()).await else { return Ok(()) };
    let server = match answer {
        Ok(server) => server,
        Err(failure) if failure.kind == FailureKind::NotFound => return Err(differs("an older one", "/capabilities")),
        Err(_) => return Ok(()),
    };
    if let Some(word) = judge(&server, needs)? {
        output::words(&word);
    }
    Ok(())
}

/// A failure where this client and that server do not fit; a word where they do, but differ.
fn judge(server: &Capabilities, needs: &[&str]) -> Result<Option<String>, Failure> {
    let theirs = output::harmless(&server.ostler_version);
    let speaks = server.protocol_versions.supported.iter().any(|version| version == ProtocolVersion::CURRENT.as_str());
    if server.v != ENVELOPE_VERSION || !speaks {
        return Err(differs(&theirs, &format!("protocol {}", ProtocolVersion::CURRENT.as_str())));
    }
    let lacks: Vec<_> = needs.iter().copied().filter(|tag| !server.has(tag)).collect();
    if !lacks.is_empty() {
        return Err(differs(&theirs, &lacks.join(", ")));
    }
    if theirs == OUR_VERSION {
        return Ok(None);
    }
    Ok(Some(format!("note: this is ostler {OUR_VERSION}, the server is {theirs}; it can do all this command needs\n")))
}

fn differs(theirs: &str, lacks: &str) -> Failure {
    errors::hinted(
        FailureKind::MethodNotAllowed,
        format!("this is ostler {OUR_VERSION}, the server is {theirs}, and it lacks what this command needs: {lacks}"),
        "use the same version on both sides; `ostler --version` shows this one",
    )
}

#[cfg(test)]
mod tests {
    use ostler_protocol::capabilities::Toggles;

    use super::*;

    fn server(version: &str) -> Capabilities {
        Capabilities::of_this_build(Toggles::default(), "/".into(), version.into())
    }

    #[test]
    fn the_same_version_is_not_worth_a_word() {
        assert_eq!(judge(&server(OUR_VERSION), &["ostler_runs"]).unwrap(), None);
    }

    #[test]
    fn another_version_that_has_everything_gets_a_word() {
        let word = judge(&server("9.9.9"), &["ostler_runs"]).unwrap().unwrap();
        assert!(word.contains(OUR_VERSION) && word.contains("9.9.9"), "{word}");
    }

    #[test]
    fn a_server_without_what_is_needed_is_refused_by_name() {
        let mut older = server("0.0.1");
        older.features.retain(|tag| tag != "ostler_runs");
        let failure = judge(&older, &["health", "ostler_runs"]).unwrap_err();
        assert!(failure.message.contains("0.0.1") && failure.message.contains("ostler_runs"), "{failure}");
        assert!(!failure.message.contains("health"), "{failure}");
    }

    #[test]
    fn a_server_of_another_protocol_is_refused() {
        let mut newer = server("9.9.9");
        newer.protocol_versions.supported = vec!["v2".into()];
        assert!(judge(&newer, &[]).unwrap_err().message.contains("protocol v1"));
    }
}
