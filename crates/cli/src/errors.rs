//! How a failure is printed: what happened, its kind, the trace id that is also in the server's log, and what to do about
//! it. A failure of this program may carry a hint of its own; otherwise the hint of its rule or kind is printed.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    failures::{PROBLEMS, PROBLEMS_MAX, RULE},
    ids::RunId,
    kernel::{provider_profiles::AgentConfig, results::RunResult, runner_jobs::NOT_FINISHED},
    redaction::Redactor,
};

use crate::terminal::{
    output::{harmless, line},
    paint::Paint,
    shell_words::quoted,
};

/// Parts of the messages about a profile without a usable credential.
const NO_CREDENTIAL: [&str; 6] = [
    "the provider asks for a key, and the profile has none",
    "the agent asks for a login that the profile does not give it",
    "Missing environment variable",
    "auth.json has no OPENAI_API_KEY",
    "the profile's key has unprintable characters",
    "the credential of the profile ",
];

/// The key under which a failure carries a hint of its own.
const HINT: &str = "hint";

/// A failure of this program, with what to do about it.
pub(crate) fn hinted(kind: FailureKind, message: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure::new(kind, message).detail(HINT, hint.into())
}

/// Replaces the hint of a failure.
pub(crate) fn with_hint(failure: Failure, hint: impl Into<String>) -> Failure {
    failure.detail(HINT, hint.into())
}

/// Whether the failure carries a hint of its own.
pub(crate) fn has_hint(failure: &Failure) -> bool {
    failure.details.as_ref().is_some_and(|details| details.contains_key(HINT))
}

/// If the failure is "not found", adds a hint that names the command that lists such things.
pub(crate) fn listed_by(failure: Failure, command: &str) -> Failure {
    let is_missing = failure.kind == FailureKind::NotFound;
    if is_missing { with_hint(failure, format!("`{command}` lists what exists")) } else { failure }
}

/// An invalid command line.
pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
    hinted(FailureKind::SchemaInvalid, message, hint)
}

pub(crate) fn render(failure: &Failure, paint: Paint) -> String {
    render_with_causes(failure, paint, false)
}

/// With the causes of a failed connection, if they are wanted.
pub(crate) fn render_with_causes(failure: &Failure, paint: Paint, is_verbose: bool) -> String {
    let detail = |key: &str| failure.details.as_ref().and_then(|d| d.get(key)).and_then(|value| value.as_str());
    // The message may quote an argument, and a token may have been typed where an id belongs.
    let shown = |message: &str| harmless(&Redactor::new(&[]).redact(message));
    let mut out = format!("{} {}\n", paint.red("error:"), shown(&failure.message));
    // The first of several problems is the message itself.
    for problem in problems(failure).skip(1) {
        out.push_str(&format!("       {}\n", shown(problem)));
    }
    out.push_str(&format!("  kind: {}\n", failure.kind));
    for (key, label) in [(RULE, RULE), ("traceId", "trace")] {
        if let Some(value) = detail(key) {
            out.push_str(&format!("  {label}: {}\n", line(value, 80)));
        }
    }
    // Only failures of this process carry a cause; a cause in the server stays in its log.
    if let Some(cause) = &failure.cause {
        out.push_str(&format!("  cause: {}\n", line(cause, 400)));
    }
    if let Some(causes) = detail(ostler_client::CAUSES).filter(|_| is_verbose) {
        out.push_str(&format!("  cause: {}\n", line(causes, 400)));
    }
    if let Some(hint) = hint_of(failure) {
        out.push_str(&format!("{} {hint}\n", paint.bold("hint:")));
    }
    out
}

/// Where the server shows the page that the hint names. `None` for failures that no server has reported.
pub(crate) fn guide_line(failure: &Failure, server: &str) -> Option<String> {
    failure.details.as_ref()?.get("traceId")?;
    page_line(&hint_of(failure)?, server)
}

/// Where the server shows the page that the hint about a failed turn names.
pub(crate) fn guide_about(result: &RunResult, server: &str) -> Option<String> {
    page_line(&hint_about(result.failure_kind?, result), server)
}

fn page_line(hint: &str, server: &str) -> Option<String> {
    let (_, from) = hint.split_once("docs/")?;
    let (page, _) = from.split_once(".md")?;
    Some(format!("  read: {}/guide/{page}\n", server.trim_end_matches('/')))
}

/// Every problem of a failure that lists several.
fn problems(failure: &Failure) -> impl Iterator<Item = &str> {
    let listed = failure.details.as_ref().and_then(|details| details.get(PROBLEMS)).and_then(|list| list.as_array());
    listed.into_iter().flatten().take(PROBLEMS_MAX).filter_map(|problem| problem.get("message")?.as_str())
}

/// What to do about it: the hint that the failure carries, else that of its rule or kind. `None` if the message says it all.
pub(crate) fn hint_of(failure: &Failure) -> Option<String> {
    let own = failure.details.as_ref().and_then(|details| details.get(HINT)).and_then(|hint| hint.as_str());
    own.map(harmless).or_else(|| general(failure).map(str::to_owned))
}

/// The hint of the failure's rule. Without a rule, or if it fits every rule, the hint of its kind.
fn general(failure: &Failure) -> Option<&'static str> {
    if failure.message.contains("invalid peer certificate") {
        return Some(
            "the server responds, but its certificate is not trusted here: set SSL_CERT_FILE to its authority's certificate, in PEM",
        );
    }
    match failure.broken_rule() {
        Some(rule) => rule.hint(failure.kind).or_else(|| fits_every_rule(failure.kind).then(|| hint(failure.kind))),
        None => Some(hint(failure.kind)),
    }
}

/// Whether the hint of the kind is right whatever rule was broken. Other hints are too general to follow one.
fn fits_every_rule(kind: FailureKind) -> bool {
    use FailureKind::*;
    matches!(
        kind,
        Unauthenticated
            | Cancelled
            | IdempotencyConflict
            | RunnerLeaseConflict
            | SessionBusy
            | SessionStoreEvicted
            | BudgetExceeded
            | RateLimited
            | Overloaded
            | Draining
            | ServerUnreachable
            | Internal
    )
}

/// What a person at a terminal can do about a failure of this kind.
pub(crate) fn hint(kind: FailureKind) -> &'static str {
    use FailureKind::*;
    match kind {
        SchemaInvalid => "see the command's `--help`",
        Unauthenticated => {
            "set OSTLER_TOKEN, or use the server's own data directory (`--data-dir`), where its `token` file is"
        }
        Forbidden => "use a token with more rights, or ask the operator of this server",
        OriginDenied => "address the server by a name it accepts, such as 127.0.0.1 or localhost",
        TenantPolicyDenied => "request less, or have the operator widen the tenant's policy in the server's config",
        NotFound => "check the id; `ostler ps --all` lists the sessions you may see, `ostler runs list` the runs",
        MethodNotAllowed | UnsupportedMediaType => {
            "client and server may be of different versions; compare `ostler --version`"
        }
        IdempotencyConflict => "use a new idempotency key, or send exactly what was sent with this one",
        RunnerLeaseConflict => "another runner holds the run; wait for its lease to end",
        SessionBusy => "wait for the session's active run, cancel it, or use another session",
        StateConflict => "check the current state: `ostler ps --all` and `ostler result` show it",
        Cancelled => "`ostler retry` starts it again, if it is still needed",
        Gone => "its events are past their retention; `ostler result` still has the outcome",
        SessionStoreEvicted => "start in a new session",
        PayloadTooLarge => "send less at once",
        SecretUnavailable => {
            "`ostler profiles set PROFILE` stores the profile's credential, `ostler profiles config PROFILE` shows its \
                configuration; `--profile scripted` needs none"
        }
        RunInputInvalid => "see the code and the message above; docs/run-input.md has the rules of the input",
        BudgetExceeded => {
            "raise the budget (`--timeout`, `--max-tokens`, `--max-cost`, …; up to the server's ceiling), or split the work"
        }
        PermissionDenied => {
            "the turn has ended; `ostler retry` asks the agent again, and another prompt in its session goes another way"
        }
        NotImplemented => "leave out what the message names, or choose a backend profile whose agent has it",
        RateLimited | Overloaded => "try again in a moment",
        BackendFailed | ProviderInvalidToolCall => "`ostler trace` shows what the agent did before it failed",
        BackendTimeout => {
            "`ostler trace` shows what it did last; allow more time with `--timeout`, or request less at once"
        }
        ThreadResumeFailed => "start in a new session; the agent lost its thread",
        ProviderAuthFailed => "have the operator renew the provider's credential: `ostler profiles set PROFILE`",
        ProviderUnavailable => {
            "try again later; if it was never reachable, check the address in `ostler profiles config PROFILE`"
        }
        InfraFailed => "check `ostler doctor` and the server's log, then try again",
        Draining => {
            "this server is stopping: try again after its next start, or at once if other servers of its store are running"
        }
        ServerUnreachable => "is the server running? `ostler doctor` checks the connection",
        Internal => "look for the trace id in the server's log, and report it",
    }
}

/// The hint about a turn that failed in this way, with the run's id and profile filled in, so that its commands can be copied.
pub(crate) fn hint_about(kind: FailureKind, result: &RunResult) -> String {
    if result.payloads_removed_at.is_some() {
        // Neither its trace nor its input is there any more.
        return "retention has removed the texts of this run; start a new one with `ostler run`".to_owned();
    }
    if kind == FailureKind::Cancelled && result.command_id.is_none() {
        return "the run had no turn that could be repeated; `ostler run` starts another one".to_owned();
    }
    if kind == FailureKind::SchemaInvalid {
        // The scripted backend rejects nothing but scripts.
        let hint = match AgentConfig::of_profile(&result.backend_profile) {
            Some(AgentConfig::Scripted) => "correct the script; docs/scripted-agent.md describes its steps",
            _ => "correct what the message names, and run it again",
        };
        return hint.to_owned();
    }
    if kind == FailureKind::SecretUnavailable {
        return secret_hint(result.blocker.as_deref().unwrap_or_default(), &result.backend_profile);
    }
    if let Some(hint) = result.blocker.as_deref().filter(|_| kind == FailureKind::InfraFailed).and_then(install_hint) {
        return hint.to_owned();
    }
    let run = result.run_id;
    if let Some(hint) = result.blocker.as_deref().and_then(|blocker| program_hint(blocker, &result.backend_profile)) {
        return hint;
    }
    if let Some(hint) = result.blocker.as_deref().and_then(|blocker| runner_hint(blocker, run)) {
        return hint;
    }
    // A server of an older version returns no profile.
    let profile = Some(result.backend_profile.as_str()).filter(|profile| !profile.is_empty()).unwrap_or("PROFILE");
    let hint = with_profile(hint(kind), profile);
    ["result", "trace", "retry"]
        .iter()
        .fold(hint, |hint, verb| hint.replace(&format!("`ostler {verb}`"), &format!("`ostler {verb} {run}`")))
}

/// What to do about a turn that lacks a secret: of its profile, or of its repository or tools.
fn secret_hint(message: &str, profile: &str) -> String {
    if let Some(hint) = secret_rule(message).and_then(|rule| rule.hint(FailureKind::SecretUnavailable)) {
        return if profile.is_empty() { hint.to_owned() } else { with_profile(hint, profile) };
    }
    let page = if profile == "model" { "docs/model.md" } else { "docs/provider-profiles.md" };
    if profile.is_empty() || !NO_CREDENTIAL.iter().any(|words| message.contains(words)) {
        // The message may name the command already, with everything that the profile lacks.
        return format!("{page} shows what to write and store; `--profile scripted` needs neither");
    }
    format!("store its credential: `ostler profiles set {} < key.txt`; {page} has the details", quoted(profile))
}

/// The rule of a message about a secret that is not missing from the profile.
fn secret_rule(message: &str) -> Option<Rule> {
    let has = |words: &str| message.contains(words);
    match () {
        () if has("credentialRef names no credential") || has("the repository wants another credential") => {
            Some(Rule::WorkspaceGitCredential)
        }
        () if has("the credential of the tool ") => Some(Rule::ToolSecretMissing),
        () if has("the secret ") && has(" cannot be opened") => Some(Rule::SecretDamaged),
        () => None,
    }
}

/// The hint with the name of the profile in its commands.
fn with_profile(hint: &str, profile: &str) -> String {
    hint.replace(" PROFILE`", &format!(" {}`", quoted(profile)))
}

/// Where to look if every start of a runner has failed.
fn runner_hint(message: &str, run: RunId) -> Option<String> {
    message.contains(NOT_FINISHED).then(|| format!("`ostler jobs list {run}` shows how the last runner ended"))
}

/// What to do about a profile whose command names no program that can be started.
fn program_hint(message: &str, profile: &str) -> Option<String> {
    let is_named = message.starts_with("the profile's program ");
    if !is_named && !message.starts_with("the agent's program did not start") {
        return None;
    }
    if !is_named && AgentConfig::of_profile(profile) == Some(AgentConfig::Codex) {
        // Its profile names no command.
        return Some("install the program on the server's machine; `ostler doctor` checks it".to_owned());
    }
    let profile = if profile.is_empty() { "PROFILE".to_owned() } else { quoted(profile) };
    Some(format!(
        "install the program on the server's machine, or change the profile's command: \
         `ostler profiles config {profile} --file FILE`"
    ))
}

/// What to do about a program that the server lacks: that of the rule with which the message ends, or of any program that is not on
/// its PATH.
fn install_hint(message: &str) -> Option<&'static str> {
    let rule = message.trim_end().strip_suffix(')').and_then(|text| text.rsplit_once('(')).map(|(_, rule)| rule);
    if let Some(rule) = rule.and_then(Rule::parse) {
        return rule.hint(FailureKind::InfraFailed);
    }
    let is_missing = message.contains("on the PATH");
    is_missing
        .then_some("install the program on the server's machine, and restart the server; `ostler doctor` checks it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_starts_all_failed_refers_to_its_jobs() {
        let run: RunId = format!("run_{:032x}", 1).parse().unwrap();
        let hint = runner_hint("no runner could finish it", run).unwrap();
        assert_eq!(hint, format!("`ostler jobs list {run}` shows how the last runner ended"));
        assert_eq!(runner_hint("the disk is full", run), None);
    }

    #[test]
    fn a_missing_program_is_to_be_installed() {
        let git = "git is not on the server's PATH; install git where the server runs (workspace-git-missing)";
        assert_eq!(install_hint(git), Rule::WorkspaceGitMissing.hint(FailureKind::InfraFailed));
        assert!(install_hint(git).is_some_and(|hint| hint.starts_with("install git on the server")));
        assert!(
            install_hint("there is no `codex` on the PATH").is_some_and(|hint| hint.starts_with("install the program"))
        );
        assert_eq!(install_hint("the disk is full (28)"), None);
    }

    #[test]
    fn a_profile_whose_program_is_missing_is_to_be_changed() {
        let missing = "the profile's program \"nosuchprog\" is not installed: it is not in the server's PATH";
        let hint = program_hint(missing, "mine").unwrap();
        let command = "`ostler profiles config mine --file FILE`";
        assert!(hint.starts_with("install the program") && hint.ends_with(command), "{hint}");
        let codex = program_hint("the agent's program did not start: No such file or directory", "codex").unwrap();
        assert!(codex.starts_with("install the program") && !codex.contains("profiles config"), "{codex}");
        assert!(program_hint("the agent's program did not start: No such file or directory", "mine").is_some());
        assert_eq!(program_hint("the disk is full", "mine"), None);
    }

    #[test]
    fn only_a_profile_without_a_credential_is_to_be_given_one() {
        let command = "`ostler profiles set mine < key.txt`";
        for missing in NO_CREDENTIAL {
            assert!(secret_hint(missing, "mine").contains(command), "{missing}");
        }
        for (message, named) in [
            ("the repository wants another credential", "git-credentials"),
            ("credentialRef names no credential of this server for this host", "git-credentials"),
            ("the credential of the tool \"gh\" is not available: there is no Secret", "secretScope"),
            ("the secret mine cannot be opened: it is damaged", "`ostler profiles set mine`, or restore the key"),
            ("x.json wants a field that auth.json of \"mine\" does not have", "docs/provider-profiles.md shows"),
            ("not set up: ostler profiles set mine --config FILE < key.txt", "docs/provider-profiles.md shows"),
        ] {
            let hint = secret_hint(message, "mine");
            assert!(hint.contains(named) && !hint.contains(command), "{message}: {hint}");
        }
        assert!(secret_hint(NO_CREDENTIAL[0], "").contains("docs/provider-profiles.md shows"));
    }

    #[test]
    fn an_error_shows_its_kind_its_trace_id_and_a_hint() {
        let failure = Failure::not_found("run").detail("traceId", "trc_1").detail("rule", "run-unknown");
        assert_eq!(
            render(&failure, Paint::PLAIN),
            "error: no such run\n  kind: not-found\n  rule: run-unknown\n  trace: trc_1\n\
             hint: check the id; `ostler ps --all` lists the sessions you may see, `ostler runs list` the runs\n"
        );
    }

    #[test]
    fn the_hint_of_a_failure_replaces_that_of_its_kind() {
        let text = render(&usage("no prompt was given", "give the agent a task"), Paint::PLAIN);
        assert_eq!(text, "error: no prompt was given\n  kind: schema-invalid\nhint: give the agent a task\n");
    }

    #[test]
    fn hints_about_a_store_that_cannot_be_opened_fit_without_a_server() {
        for (kind, rule, named) in [
            (FailureKind::NotFound, Rule::StoreAbsent, "--data-dir"),
            (FailureKind::InfraFailed, Rule::StoreDiskFull, "free space"),
            (FailureKind::InfraFailed, Rule::Store, "write beside it"),
            (FailureKind::StateConflict, Rule::Store, "stop the other process"),
        ] {
            let hint = hint_of(&Failure::rule(rule, "it went wrong").with_kind(kind)).unwrap();
            assert!(hint.contains(named) && !hint.contains("doctor"), "{rule}: {hint}");
        }
    }

    #[test]
    fn hints_about_agents_name_commands() {
        for (rule, named) in [
            (Rule::WebhookUnknown, "ostler webhooks set"),
            (Rule::WebhookDisabled, "ostler webhooks replay AGENT --dead"),
            (Rule::AgentRetired, "ostler agents list"),
            (Rule::NotOwner, "ostler agents show"),
            (Rule::ManifestMissing, "ostler agents update AGENT --manifest"),
            (Rule::ManifestInvalid, "docs/agents.md"),
            (Rule::ManifestTooLarge, "docs/agents.md"),
        ] {
            let hint = hint_of(&Failure::rule(rule, "it went wrong")).unwrap();
            assert!(hint.contains(named), "{rule}: {hint}");
        }
    }

    #[test]
    fn no_rule_has_a_general_hint() {
        let general: Vec<_> =
            FailureKind::ALL.iter().filter(|row| !fits_every_rule(row.kind)).map(|row| hint(row.kind)).collect();
        for row in Rule::ALL {
            let kinds = [row.kind].into_iter().chain(row.hints_by_kind.iter().map(|(kind, _)| *kind));
            for kind in kinds {
                let hint = hint_of(&Failure::rule(row.rule, "it went wrong").with_kind(kind)).unwrap_or_default();
                assert!(!general.contains(&hint.as_str()), "{}: {hint}", row.name);
            }
        }
    }

    #[test]
    fn hints_name_pages_and_commands_that_exist() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let command = <crate::Cli as clap::CommandFactory>::command();
        let of_rules =
            Rule::ALL.iter().flat_map(|row| row.hint.into_iter().chain(row.hints_by_kind.iter().map(|h| h.1)));
        for text in of_rules.chain(FailureKind::ALL.iter().map(|row| hint(row.kind))) {
            for page in text.split([' ', ',', ';', ')', '(']).filter(|word| word.starts_with("docs/")) {
                assert!(root.join(page).exists(), "{text}: {page}");
            }
            for words in text.split('`').filter_map(|code| code.strip_prefix("ostler ")) {
                let verb = words.split(' ').next().unwrap();
                if verb.starts_with("--") {
                    continue;
                }
                let found = command.get_subcommands().find(|c| c.get_name() == verb);
                let found = found.unwrap_or_else(|| panic!("{text}: no command {verb}"));
                let next = words.split(' ').nth(1).filter(|_| found.has_subcommands());
                let known = |next: &str| found.get_subcommands().any(|c| c.get_name() == next);
                assert!(next.is_none_or(known), "{text}: {next:?}");
            }
        }
    }

    #[test]
    fn a_page_that_a_hint_names_is_shown_by_the_server() {
        let of_server = |rule| Failure::rule(rule, "too much").detail("traceId", "trc_1");
        let line = guide_line(&of_server(Rule::BodySize), "http://127.0.0.1:4747/");
        assert_eq!(line.as_deref(), Some("  read: http://127.0.0.1:4747/guide/limits\n"));
        assert_eq!(guide_line(&of_server(Rule::Timezone), "http://127.0.0.1:4747"), None, "its hint names no page");
        let offline = Failure::rule(Rule::BodySize, "too much");
        assert_eq!(guide_line(&offline, "http://127.0.0.1:4747"), None, "no server has reported it");
    }

    #[test]
    fn the_hint_about_a_stopping_server_is_true_of_one_server_and_of_several() {
        let hint = hint(FailureKind::Draining);
        assert!(hint.contains("after its next start") && hint.contains("other servers of its store"), "{hint}");
        assert!(!hint.contains("will respond"), "nobody knows that there is another: {hint}");
    }

    /// `OSTLER_BLESS=1` rewrites the page.
    #[test]
    fn every_kind_has_a_hint() {
        let failure = |kind| Failure::new(kind, "it went wrong").detail("traceId", "trc_1");
        let page: String = FailureKind::ALL.iter().map(|row| render(&failure(row.kind), Paint::PLAIN) + "\n").collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/snapshots/error_kinds.txt");
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "run the test with OSTLER_BLESS=1");
    }

    #[test]
    fn every_problem_has_a_line() {
        let problems = ["one is wrong", "two is wrong"].map(|message| Failure::invalid(Rule::Config, message));
        let text = render(&Failure::check_all(problems.into()).unwrap_err(), Paint::PLAIN);
        assert!(text.starts_with("error: one is wrong\n       two is wrong\n  kind: schema-invalid\n"), "{text}");
    }

    #[test]
    fn a_message_cannot_drive_the_terminal() {
        assert!(!render(&Failure::new(FailureKind::Internal, "\x1b]0;x\x07"), Paint::PLAIN).contains('\x1b'));
    }
}
