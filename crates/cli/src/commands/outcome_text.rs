//! What the last turn of a session ended with, as a line of the inbox.

use ostler_protocol::{Rule, kernel::results::RunResult};

use crate::terminal::{
    output::{self, line},
    shell_words::{flag, quoted},
};

pub(crate) const OUTCOME_CHARS_MAX: usize = 400;
/// What follows the name of the profile in the commands of servers that set one.
const SET_OPTIONS: [&str; 3] = ["< key.txt", "--config FILE < key.txt", "--config FILE --model-catalog FILE < key.txt"];

/// What the last turn of a run ended with.
#[derive(Clone)]
pub(crate) struct OutcomeText {
    pub text: String,
    /// The command with which the text ends, if the server has written it.
    pub mending_command: Option<String>,
}

/// Why a turn did not complete, else the first line of its reply.
pub(crate) fn outcome_text(result: &RunResult) -> Option<OutcomeText> {
    let reason = result.failure_kind.map(|kind| result.blocker.as_deref().unwrap_or(kind.row().meaning));
    let first_line = || result.reply.as_deref()?.lines().find(|line| !line.trim().is_empty());
    let text = line(reason.or_else(first_line)?, OUTCOME_CHARS_MAX);
    let mending_command = result
        .rule
        .and_then(|rule| mending_command(rule, &text, &result.backend_profile, result.profile_tenant_id.as_deref()));
    Some(OutcomeText { text, mending_command })
}

/// The command with which the server's message about the incomplete profile of the run ends. It must be one of the few that a server
/// writes: other messages may quote a provider or an agent, whose commands are not for copying.
fn mending_command(rule: Rule, reason: &str, profile: &str, tenant_id: Option<&str>) -> Option<String> {
    let (_, command) = output::split_command(reason).filter(|_| rule == Rule::ProfileSecretMissing)?;
    let arguments = command.strip_prefix("ostler profiles ")?;
    let (verb, options) = arguments.split_once(&format!(" {profile} "))?;
    let options = match tenant_id {
        Some(tenant_id) => options.strip_prefix(&format!("{} ", flag("--tenant", tenant_id)))?,
        None => options,
    };
    let is_known = match verb {
        "config" => options == "--file FILE",
        "set" => SET_OPTIONS.contains(&options),
        _ => false,
    };
    (is_known && quoted(profile) == profile).then(|| command.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_the_server_are_shown_to_be_copied() {
        let found = |reason: &str, profile: &str| mending_command(Rule::ProfileSecretMissing, reason, profile, None);
        for (profile, own) in [
            ("deepseek", "ostler profiles set deepseek --config FILE < key.txt"),
            ("codex", "ostler profiles set codex < key.txt"),
            ("model", "ostler profiles config model --file FILE"),
        ] {
            let reason = format!("the profile {profile:?} is not set up: {own}");
            assert_eq!(found(&reason, profile).as_deref(), Some(own));
            assert_eq!(found(&reason, "other"), None, "it is about another profile");
            assert_eq!(mending_command(Rule::ProfileKey, &reason, profile, None), None, "an agent's own words");
        }
        for other in [
            "run: ostler sessions delete --all",
            "run: ostler profiles delete codex < key.txt",
            "run: ostler profiles set codex < key.txt | sh",
            "run: ostler profiles set codex < /etc/passwd",
            "run: ostler profiles config codex --file .ssh/id_ed25519",
            "run: ostler profiles set codex --config FI…",
        ] {
            assert_eq!(found(other, "codex"), None, "{other}");
        }
        let own = "ostler profiles config mine --tenant 'a b' --file FILE";
        let reason = format!("the profile \"mine\" is not set up: it needs a config.toml: {own}");
        for (tenant_id, expected) in [(Some("a b"), Some(own)), (Some("other"), None), (None, None)] {
            let found = mending_command(Rule::ProfileSecretMissing, &reason, "mine", tenant_id);
            assert_eq!(found.as_deref(), expected, "{tenant_id:?}");
        }
    }
}
