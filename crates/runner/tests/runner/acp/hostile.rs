//! Agents whose output is not the protocol.

use super::*;

#[tokio::test]
async fn output_that_is_not_the_protocol_fails_the_turn_at_once() {
    // None of these ends its line or exits.
    let long = "head -c 9000000 /dev/zero | tr '\\0' x";
    for output in [long, "printf 'PK\\003\\004\\000\\000'", "printf 'caf\\351\\n'"] {
        for script in [
            format!("{output}; listen"),
            format!("hello; read -r l; {output}; listen"),
            format!("begin; read -r l; {output}; listen"),
        ] {
            let fixture = Fixture::new(&script);
            let command = fixture.turn().await;
            assert_eq!(end(&command), (TerminalStatus::Failed, Some(FailureKind::BackendFailed)), "{script}");
            let message = command.terminal.unwrap().message.unwrap_or_default();
            assert!(message.contains("does not keep to its protocol"), "{script}: {message}");
        }
    }
}
