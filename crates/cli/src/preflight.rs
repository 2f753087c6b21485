//! What the server can be relied on for, asked before a command asks for anything else. A server that lacks what the
//! command needs is named with what it lacks; one of another version gets a word on stderr. A server that does not answer
//! here is left to the command itself, which says it better.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    capabilities::{ENVELOPE_VERSION, ProtocolVersion, SeenCapabilities},
};
use tokio::time::{Duration, timeout};

use crate::{errors, output};

/// How long a command that could also just try is held up.
const PATIENCE: Duration = Duration::from_secs(5);
const OUR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Refuses a command whose `needs` this server does not have.
pub async fn preflight(client: &Client, needs: &[&str]) -> Result<(), Failure> {
    let Ok(answer) = timeout(PATIENCE, client.capabilities()).await else { return Ok(()) };
    if let Some(word) = judge(answer, needs)? {
        output::words(&word);
    }
    Ok(())
}

/// A failure where this client and that server do not fit; a word where they do, but differ. Whether the server can be
/// reached, and whether it lets us in, is not judged here.
pub fn judge(answer: Result<SeenCapabilities, Failure>, needs: &[&str]) -> Result<Option<String>, Failure> {
    let server = match answer {
        Ok(server) => server,
        Err(failure) if failure.kind == FailureKind::NotFound => return Err(differs("an older one", "/capabilities")),
        Err(failure) if is_foreign(&failure) => return Err(foreign("its /capabilities cannot be read")),
        Err(_) => return Ok(None),
    };
    let theirs = match &server.ostler_version {
        Some(version) => output::line(version, 40),
        None => "of no known version".into(),
    };
    match server.v {
        Some(ENVELOPE_VERSION) => {}
        Some(other) => {
            return Err(foreign(&format!("its envelope is v{other}, this client reads v{ENVELOPE_VERSION}")));
        }
        None => return Err(foreign("its envelope has no version")),
    }
    if !server.may_speak(ProtocolVersion::CURRENT) {
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

/// Somebody answered, but not as an Ostler does.
pub fn is_foreign(failure: &Failure) -> bool {
    failure.rule_name() == Some("answer-unknown") && matches!(failure.kind, FailureKind::BackendFailed)
}

fn foreign(why: &str) -> Failure {
    errors::hinted(
        FailureKind::MethodNotAllowed,
        format!("what answers there is no Ostler that ostler {OUR_VERSION} can talk to: {why}"),
        "is that the right address? `ostler doctor` looks closer; client and server should be of the same version",
    )
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
    use ostler_protocol::capabilities::{Capabilities, Toggles};

    use super::*;

    fn server(version: &str) -> SeenCapabilities {
        let sent = Capabilities::of_this_build(Toggles::default(), "/".into(), version.into());
        serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap()
    }

    #[test]
    fn the_same_version_is_not_worth_a_word() {
        assert_eq!(judge(Ok(server(OUR_VERSION)), &["ostler_runs"]).unwrap(), None);
    }

    #[test]
    fn another_version_that_has_everything_gets_a_word() {
        let word = judge(Ok(server("9.9.9")), &["ostler_runs"]).unwrap().unwrap();
        assert!(word.contains(OUR_VERSION) && word.contains("9.9.9"), "{word}");
    }

    #[test]
    fn a_server_without_what_is_needed_is_refused_by_name() {
        let mut older = server("0.0.1");
        older.features.retain(|tag| tag != "ostler_runs");
        let failure = judge(Ok(older), &["health", "ostler_runs"]).unwrap_err();
        assert!(failure.message.contains("0.0.1") && failure.message.contains("ostler_runs"), "{failure}");
        assert!(!failure.message.contains("health"), "{failure}");
    }

    #[test]
    fn a_server_of_another_protocol_is_refused() {
        let mut newer = server("9.9.9");
        newer.protocol_versions.as_mut().unwrap().supported = vec!["v2".into()];
        assert!(judge(Ok(newer), &[]).unwrap_err().message.contains("protocol v1"));
    }

    #[test]
    fn a_server_that_does_not_say_what_it_speaks_is_judged_by_its_features() {
        let plain = SeenCapabilities { protocol: None, protocol_versions: None, ..server(OUR_VERSION) };
        assert_eq!(judge(Ok(plain), &["ostler_runs"]).unwrap(), None);
    }
}
