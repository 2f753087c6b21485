//! Answers a permission request of an agent. The request is read and displayed first, and the answer names its digest, so
//! that a person never allows something they have not seen.

use clap::builder::NonEmptyStringValueParser;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    ids::{PermissionId, prefix_range},
    kernel::permissions::{AnswerPermission, OptionKind, PermissionOption, PermissionRequest, PermissionStatus},
};

use crate::{
    candidates,
    commands::waiting_requests::{self, WaitingRequest, open_requests},
    connection::Connection,
    errors, exit_codes,
    targets::{self, Within},
    terminal::{
        confirm::{ask_line, can_ask},
        output::{self, Output, line},
        permissions::{describe, options},
        shell_words::positional,
        times::{Times, now},
    },
};

#[derive(clap::Args, Debug)]
pub(crate) struct RequestArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::waiting(),
        help = "The run, or a session for its active or latest one [default: everything that waits]")]
    run: Option<String>,
    #[arg(value_name = "PRM", help = "The request's id, or the beginning of it")]
    permission: Option<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
    /// Answer with this option
    #[arg(long, value_name = "ID")]
    option: Option<String>,
    /// Answer without asking; without a run, the only request that waits
    #[arg(short = 'y', long)]
    yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Allow,
    Reject,
}

impl Verdict {
    /// The command that answers so.
    fn verb(self) -> &'static str {
        match self {
            Self::Allow => "approve",
            Self::Reject => "deny",
        }
    }
}

/// Answers a request of the named run. Without a run: lists every request that waits, and at a terminal asks about each.
/// Nothing is allowed without a yes: of the person at the terminal, or `--yes`.
pub(crate) async fn answer(connection: &Connection, args: &RequestArgs, verdict: Verdict) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let client = &finder.client;
    let Some(word) = &args.run else {
        let waiting = open_requests(client, args.within.tenant()).await?;
        return answer_waiting(client, args, waiting, verdict).await;
    };
    let run = finder.run(word).await?;
    let all = client.list_permissions(&run).await?.permissions;
    let request = pick(all, args, word, verdict, now())?;
    let mut option = choose(&request.options, args.option.as_deref(), verdict)?;
    output::message(&describe(&request, now(), output::stderr_width()));
    if verdict == Verdict::Allow && !args.yes {
        if !can_ask() {
            let message = "nothing was allowed: there is no terminal to ask at";
            return Err(errors::usage(
                message,
                "pass `--yes` to allow it without a question; `ostler deny` refuses it",
            ));
        }
        match ask_verdict()? {
            Some(Verdict::Allow) => {}
            Some(Verdict::Reject) => option = choose(&request.options, None, Verdict::Reject)?,
            None => return Ok(exit_codes::OK),
        }
    }
    let answered = send(client, &request, option).await?;
    args.output.one(&answered, || outcome(&answered));
    note_pending(&answered);
    Ok(exit_codes::OK)
}

fn outcome(answered: &PermissionRequest) -> String {
    format!("{} {}\n", answered.permission_id, answered.status.as_str())
}

/// Explains why a request that was answered still waits.
fn note_pending(answered: &PermissionRequest) {
    if answered.status == PermissionStatus::Pending {
        output::message("the vote was counted; the request waits for more votes\n");
    }
}

async fn send(
    client: &Client,
    request: &PermissionRequest,
    option: &PermissionOption,
) -> Result<PermissionRequest, Failure> {
    let answer = AnswerPermission { option_id: option.option_id.clone(), digest: request.digest.clone() };
    client.answer_permission(&request.run_id.to_string(), &request.permission_id.to_string(), &answer).await
}

/// Asks whether to allow the request that is shown. `n` denies it, as at every prompt. `None` if it is skipped: only a clear
/// answer counts.
fn ask_verdict() -> Result<Option<Verdict>, Failure> {
    let verdict = typed_verdict(&ask_line("allow this? [y]es, [n]o, [s]kip:")?);
    if verdict.is_none() {
        output::message("skipped; the request still waits\n");
    }
    Ok(verdict)
}

fn typed_verdict(typed: &str) -> Option<Verdict> {
    match typed {
        "y" | "yes" => Some(Verdict::Allow),
        "n" | "no" => Some(Verdict::Reject),
        _ => None,
    }
}

/// Asks about every request that waits. Without a terminal they are listed, and with `--yes` the only one is answered.
async fn answer_waiting(
    client: &Client,
    args: &RequestArgs,
    waiting: Vec<WaitingRequest>,
    verdict: Verdict,
) -> Result<u8, Failure> {
    if waiting.is_empty() {
        args.output.many(&waiting, String::new);
        output::message("no permission request waits for an answer\n");
        return Ok(exit_codes::OK);
    }
    if args.yes {
        let [only] = waiting.as_slice() else {
            let message = format!("{} permission requests wait for an answer", waiting.len());
            let verb = verdict.verb();
            let hint = format!("`ostler {verb}` lists them; name a run: ostler {verb} RUN --yes");
            return Err(errors::usage(message, hint));
        };
        let option = choose(&only.request.options, args.option.as_deref(), verdict)?;
        output::message(&describe(&only.request, now(), output::stderr_width()));
        let answered = send(client, &only.request, option).await?;
        args.output.one(&answered, || outcome(&answered));
        note_pending(&answered);
        return Ok(exit_codes::OK);
    }
    if !can_ask() || !args.output.is_text() {
        args.output.many(&waiting, || waiting_requests::render(&waiting, Times::default(), now(), output::width()));
        return Ok(exit_codes::OK);
    }
    for (index, WaitingRequest { session_id, request, .. }) in waiting.iter().enumerate() {
        output::message(&format!("{} of {}, in {}\n", index + 1, waiting.len(), line(session_id, 200)));
        output::message(&describe(request, now(), output::stderr_width()));
        let Some(verdict) = ask_verdict()? else { continue };
        match send(client, request, choose(&request.options, None, verdict)?).await {
            Ok(answered) => {
                output::data(&outcome(&answered));
                note_pending(&answered);
            }
            // One that was answered concurrently, or that others must answer, does not keep the rest from being answered.
            Err(failure) if matches!(failure.kind, FailureKind::StateConflict | FailureKind::Forbidden) => {
                output::message(&format!("not answered: {}\n", line(&failure.message, 300)));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(exit_codes::OK)
}

fn pick(
    all: Vec<PermissionRequest>,
    args: &RequestArgs,
    run: &str,
    verdict: Verdict,
    now: Timestamp,
) -> Result<PermissionRequest, Failure> {
    let run = positional(run);
    if let Some(id_prefix) = &args.permission {
        let hint = format!("`ostler result {run}` lists the open requests");
        let unknown = || errors::hinted(FailureKind::NotFound, "no such permission request in this run", hint.clone());
        let (prefix, _) = prefix_range(PermissionId::PREFIX, id_prefix).ok_or_else(unknown)?;
        let id = |request: &PermissionRequest| request.permission_id.to_string();
        let fits = all.iter().filter(|request| id(request).starts_with(&prefix));
        let candidates = fits.map(|request| (id(request), request.status.as_str().to_owned())).collect();
        let chosen = targets::one(id_prefix, "permission request", candidates)?.ok_or_else(unknown)?;
        return all.into_iter().find(|request| id(request) == chosen).ok_or_else(unknown);
    }
    let mut open: Vec<_> = all.into_iter().filter(|request| request.status == PermissionStatus::Pending).collect();
    match open.len() {
        0 => Err(errors::hinted(
            FailureKind::NotFound,
            "the run has no open permission request",
            format!("`ostler trace {run}` shows past requests and answers"),
        )),
        1 => Ok(open.remove(0)),
        number => {
            let verb = verdict.verb();
            let list: String = open.iter().map(|request| describe(request, now, output::stderr_width())).collect();
            let message = format!("the run has {number} open permission requests\n{}", list.trim_end());
            Err(errors::usage(message, format!("name one: ostler {verb} {run} prm_…")))
        }
    }
}

/// The named option if it fits the verdict; else the fitting option with the smallest effect.
pub(crate) fn choose<'a>(
    all: &'a [PermissionOption],
    named: Option<&str>,
    verdict: Verdict,
) -> Result<&'a PermissionOption, Failure> {
    let fits = |option: &&PermissionOption| option.kind.allows() == (verdict == Verdict::Allow);
    if let Some(named) = named {
        let found = all.iter().find(|option| option.option_id == named);
        let found = found.ok_or_else(|| errors::usage("the request has no such option", hint(all)))?;
        return Some(found).filter(fits).ok_or_else(|| {
            let (does, verb) = if found.kind.allows() { ("allows", "approve") } else { ("refuses", "deny") };
            errors::usage(format!("the option {named:?} {does}"), format!("use `ostler {verb}` for it"))
        });
    }
    let once = |option: &&PermissionOption| matches!(option.kind, OptionKind::AllowOnce | OptionKind::RejectOnce);
    let fitting = || all.iter().filter(fits);
    fitting().find(once).or_else(|| fitting().next()).ok_or_else(|| {
        let what = if verdict == Verdict::Allow { "allows" } else { "refuses" };
        errors::usage(format!("the request has no option that {what}"), hint(all))
    })
}

fn hint(all: &[PermissionOption]) -> String {
    format!("its options are {}", options(all))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::{output::Format, output_flags::FilterFlag};

    const NOW: &str = "2030-01-01T00:00:05Z";

    fn request(number: u32, status: &str) -> PermissionRequest {
        serde_json::from_value(json!({"permissionId": format!("prm_{number:032x}"), "runId": format!("run_{:032x}", 1),
            "commandId": format!("cmd_{:032x}", 1), "title": "Clean up?", "command": "rm -rf build", "toolCallId": null, "digest": "ab".repeat(32),
            "options": [{"optionId": "always", "name": "Always", "kind": "allow_always"},
                {"optionId": "yes", "name": "Once", "kind": "allow_once"},
                {"optionId": "no", "name": "No", "kind": "reject_once"}],
            "deadline": "2030-01-01T00:10:00Z", "status": status, "optionId": null, "resolvedBy": null,
            "resolvedAt": null, "createdAt": "2030-01-01T00:00:00Z"}))
        .unwrap()
    }

    fn picked(all: Vec<PermissionRequest>, permission: Option<&str>) -> Result<PermissionRequest, Failure> {
        let permission = permission.map(str::to_owned);
        let args = RequestArgs {
            run: Some("run_1".into()),
            permission,
            within: Within::default(),
            output: Output::new(Format::Text, FilterFlag::default()),
            option: None,
            yes: false,
        };
        pick(all, &args, "run_1", Verdict::Allow, NOW.parse().unwrap())
    }

    #[test]
    fn the_only_open_request_needs_no_id() {
        assert_eq!(picked(vec![request(1, "denied"), request(2, "pending")], None).unwrap(), request(2, "pending"));
        assert_eq!(picked(vec![request(1, "denied")], None).unwrap_err().kind, FailureKind::NotFound);
    }

    #[test]
    fn several_open_requests_are_listed() {
        let failure = picked(vec![request(1, "pending"), request(2, "pending")], None).unwrap_err();
        assert!(
            failure.message.contains(&format!("prm_{:032x}: Clean up?\n  command: rm -rf build\n  digest:  abab", 2)),
            "{}",
            failure.message
        );
        let id = format!("prm_{:032x}", 1);
        let all = vec![request(1, "pending"), request(2, "pending")];
        assert_eq!(picked(all, Some(&id)).unwrap(), request(1, "pending"));
        assert_eq!(picked(vec![request(2, "pending")], Some(&id)).unwrap_err().kind, FailureKind::NotFound);
    }

    #[test]
    fn the_fitting_option_with_the_smallest_effect_is_chosen() {
        let all = request(1, "pending").options;
        assert_eq!(choose(&all, None, Verdict::Allow).unwrap().option_id, "yes");
        assert_eq!(choose(&all, None, Verdict::Reject).unwrap().option_id, "no");
        assert_eq!(choose(&all[..1], None, Verdict::Allow).unwrap().option_id, "always");
        assert_eq!(choose(&all, Some("always"), Verdict::Allow).unwrap().option_id, "always");
        assert!(choose(&all[..2], None, Verdict::Reject).is_err());
    }

    #[test]
    fn only_a_clear_answer_counts() {
        let all = [("y", Some(Verdict::Allow)), ("no", Some(Verdict::Reject)), ("s", None), ("", None), ("yess", None)];
        for (typed, verdict) in all {
            assert_eq!(typed_verdict(typed), verdict, "{typed:?}");
        }
    }

    #[test]
    fn approve_never_refuses_and_deny_never_allows() {
        let all = request(1, "pending").options;
        let failure = choose(&all, Some("no"), Verdict::Allow).unwrap_err();
        assert_eq!(failure.message, "the option \"no\" refuses");
        assert!(choose(&all, Some("yes"), Verdict::Reject).is_err());
        assert!(choose(&all, Some("other"), Verdict::Allow).is_err());
    }
}
