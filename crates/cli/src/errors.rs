//! How a failure is printed: what happened, its kind, the trace id that is also in the server's log, and what to do about
//! it. A failure of this program may carry a hint of its own; otherwise the hint of its rule or kind is printed.

use ostler_protocol::{
    Failure, FailureKind, Rule,
    failures::{MORE_PROBLEMS, PROBLEMS, PROBLEMS_MAX, RULE},
    kernel::{provider_profiles::AgentConfig, results::RunResult},
    redaction::Redactor,
};

use crate::terminal::{
    output::{harmless, line},
    paint::Paint,
    shell_words::{flag, quoted},
};

/// The page about the credentials of profiles.
const CREDENTIAL_PAGE: &str = "docs/provider-profiles.md";

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
    if failure.details.as_ref().is_some_and(|details| details.contains_key(MORE_PROBLEMS)) {
        out.push_str("       more problems are reported once these are corrected\n");
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

/// What to do about it: the hint that the failure carries, else that of its rule or kind. `None` if the message is enough.
pub(crate) fn hint_of(failure: &Failure) -> Option<String> {
    let own = failure.details.as_ref().and_then(|details| details.get(HINT)).and_then(|hint| hint.as_str());
    let text = |key: &str| failure.details.as_ref()?.get(key)?.as_str();
    let profile = NamedProfile { name: text("profile").unwrap_or_default(), tenant_id: text("tenantId") };
    own.map(harmless).or_else(|| general(failure).map(|hint| profile.fill(hint)))
}

/// The hint of the failure's rule. Without a rule, or if it fits every rule, the hint of its kind.
fn general(failure: &Failure) -> Option<&'static str> {
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
            "the turn has ended; `ostler retry` repeats the prompt, or send a different prompt to its session"
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
    let profile = NamedProfile { name: &result.backend_profile, tenant_id: result.profile_tenant_id.as_deref() };
    let run = result.run_id;
    if let Some(hint) = result.rule.and_then(|rule| hint_of_rule(rule, kind, &profile)) {
        return hint.replace(" RUN`", &format!(" {run}`"));
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
        // The message may name the command already, with everything that the profile lacks.
        let page = credential_page(profile.name);
        return format!("{page} shows what to write and store; `--profile scripted` needs neither");
    }
    let hint = profile.fill(hint(kind));
    ["result", "trace", "retry"]
        .iter()
        .fold(hint, |hint, verb| hint.replace(&format!("`ostler {verb}`"), &format!("`ostler {verb} {run}`")))
}

/// The hint about a turn that has failed by this rule. `None` if the hint of the kind fits better.
fn hint_of_rule(rule: Rule, kind: FailureKind, profile: &NamedProfile<'_>) -> Option<String> {
    let hint = match rule {
        // Their messages name the command, with everything that the profile lacks.
        Rule::ProfileConfigMissing | Rule::ProfileSecretMissing | Rule::ProfileTemplate => return None,
        _ => rule.hint(kind)?,
    };
    Some(profile.fill(hint).replace(CREDENTIAL_PAGE, credential_page(profile.name)))
}

/// The page about the credential of this profile.
fn credential_page(profile: &str) -> &'static str {
    if profile == "model" { "docs/model.md" } else { CREDENTIAL_PAGE }
}

/// A profile as the commands of hints name it.
struct NamedProfile<'a> {
    /// Empty if a server of an older version has not returned it.
    name: &'a str,
    /// The tenant that owns it. `None` if the operator does.
    tenant_id: Option<&'a str>,
}

impl NamedProfile<'_> {
    /// The hint with this profile in its commands.
    fn fill(&self, hint: &str) -> String {
        if self.name.is_empty() {
            return hint.to_owned();
        }
        let tenant = self.tenant_id.map(|tenant_id| format!(" {}", flag("--tenant", tenant_id))).unwrap_or_default();
        hint.replace(" PROFILE", &format!(" {}{tenant}", quoted(self.name)))
    }
}

#[cfg(test)]
mod tests;
