//! `ostler result`: the outcome of a run's command. If it did not complete, the reason and a hint come first.

use std::collections::BTreeMap;

use clap::builder::NonEmptyStringValueParser;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::{fold::ToolItem, results::RunResult},
};

use crate::{
    candidates,
    commands::labels,
    connection::Connection,
    errors, exit_codes,
    targets::Within,
    terminal::{
        amounts,
        output::{self, Output, count, harmless, line},
        paint::Paint,
        permissions::{answer_commands, deadline_text, request_text},
        status::{liveness_words, next_step, recovery_command},
        times::{age_ms, now},
    },
};

/// Show the outcome of a run's latest command, or of one command
///
/// The exit code is that of the outcome: 0 only for completed, 9 while it has not ended.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler result\n  ostler result 01a1dd6b\n  ostler result my-session\n  \
    ostler result RUN -o json | jq -r .reply")]
pub(crate) struct ResultArgs {
    #[arg(value_name = "RUN", value_parser = NonEmptyStringValueParser::new(), add = candidates::targets(),
        help = "The run, or a session for its active or latest one [default: the latest run]")]
    run: Option<String>,
    /// The result of this command instead of the latest, by its id or the beginning of it
    #[arg(long, value_name = "CMD", value_parser = NonEmptyStringValueParser::new())]
    command: Option<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn result(connection: &Connection, args: &ResultArgs) -> Result<u8, Failure> {
    let finder = args.within.finder(connection)?;
    let run = finder.run_or_latest(args.run.as_deref()).await?;
    let command = match &args.command {
        Some(word) => Some(finder.command(&run, word).await?),
        None => None,
    };
    let result = finder.client.run_result(&run, command.as_deref()).await?;
    // A result has no labels: they may change after it. It is shown also if they cannot be read.
    let labels = match args.output.is_text() {
        true => finder.client.get_run(&run).await.ok().and_then(|run| labels::pairs(&run.run.labels)),
        false => None,
    };
    let width = output::width();
    args.output.one(&result, || {
        let mut out = render(&result, &connection.invocation(), now(), width, Paint::stdout());
        if let Some(pairs) = labels {
            let mut last = String::new();
            field(&mut last, "labels", &pairs);
            out.push_str(&output::folded(&last, width));
        }
        out
    });
    if args.output.is_text() {
        output::message(&errors::guide_about(&result, &connection.settings()?.server.value).unwrap_or_default());
    }
    Ok(exit_codes::of_outcome(result.terminal_status))
}

/// The fields are wrapped at the margin of the terminal; the reply is printed as it is.
pub(crate) fn render(
    result: &RunResult,
    invocation: &str,
    now: Timestamp,
    width: Option<usize>,
    paint: Paint,
) -> String {
    let state = result.state.as_str();
    let words = match result.state.is_ended() {
        true => state.to_owned(),
        false if result.command_id.is_none() => "waiting for a command".to_owned(),
        false => liveness_words(&result.liveness),
    };
    let mut out = format!("{}\n", paint.state(result.state, &words));
    if let Some(kind) = result.failure_kind {
        let blocker = result.blocker.as_deref().unwrap_or(kind.row().meaning);
        out.push_str(&format!(
            "  failure: {kind}\n  blocker: {}\n  next:    {}\n",
            line(blocker, 500),
            errors::hint_about(kind, result)
        ));
    }
    let head = output::folded(&out, width);
    let said = format!("{}{}\n", text_of(result, width), open_permissions(result, invocation, now, width));
    let mut out = String::new();
    field(&mut out, "run", &result.run_id.to_string());
    if let Some(repeated) = result.retry_of {
        field(&mut out, "retry of", &repeated.to_string());
    }
    if let Some(command) = result.command_id {
        field(&mut out, "command", &command.to_string());
    }
    field(&mut out, "session", &line(&result.session_id, 200));
    field(&mut out, "events", &events(result));
    if result.usage.total_tokens > 0 {
        field(&mut out, "usage", &usage(result));
    }
    if let Some(steer) = &result.steer_delivery {
        let stage = if steer.accepted { "accepted by the agent" } else { "not accepted by the agent yet" };
        field(&mut out, "steer", stage);
    }
    tools(&mut out, result);
    liveness(&mut out, result, now);
    head + &said + &output::folded(&out, width)
}

fn field(out: &mut String, name: &str, value: &str) {
    out.push_str(&format!("{name:<9}{value}\n"));
}

/// The reply; if there is none, the last text, marked as such.
fn text_of(result: &RunResult, width: Option<usize>) -> String {
    let block = |text: &str| format!("\n{}\n", harmless(text).trim_end());
    let Some(last) = &result.final_response else {
        let removed = result.payloads_removed_at.map(|at| {
            let at = at.strftime("%Y-%m-%dT%H:%M:%SZ");
            output::folded(&format!("\nretention removed the texts of this run at {at}\n"), width)
        });
        return removed.unwrap_or_default();
    };
    let cut = if last.text_truncated { "(the text was shortened)\n" } else { "" };
    match &result.reply {
        Some(reply) => format!("{}{cut}", block(reply)),
        None => format!("\nthe last text, which is not the reply:{}{cut}", block(&last.text)),
    }
}

fn open_permissions(result: &RunResult, invocation: &str, now: Timestamp, width: Option<usize>) -> String {
    let one = |request: &ostler_protocol::kernel::permissions::PermissionRequest| {
        let head = output::folded(&format!("\npermission needed: {}", line(&request.title, 400)), width);
        let text = request_text(&head, request.command.as_deref(), &request.digest, &request.options, width);
        let deadline = deadline_text(request.deadline, now);
        format!("{text}{deadline}{}", answer_commands(invocation, request.run_id, request.permission_id))
    };
    result.open_permissions.iter().map(one).collect()
}

fn events(result: &RunResult) -> String {
    match result.scoped_event_count {
        Some(own) => format!("{own} of the command, {} of the run", result.event_count),
        None => result.event_count.to_string(),
    }
}

fn usage(result: &RunResult) -> String {
    let tokens = count(result.usage.total_tokens, "token");
    if result.usage.cost_usd > 0.0 { format!("{tokens}, {}", amounts::cost(result.usage.cost_usd)) } else { tokens }
}

fn tools(out: &mut String, result: &RunResult) {
    let tools = &result.tool_call_summary;
    if tools.count == 0 {
        return;
    }
    let mut text = count(tools.count, "call");
    for (label, counts) in [("", &tools.status_counts), ("exit ", &tools.exit_code_counts)] {
        if !counts.is_empty() {
            text.push_str(&format!("; {}", tally(label, counts)));
        }
    }
    field(out, "tools", &text);
    for item in &tools.items {
        out.push_str(&format!("  {}\n", tool(item)));
    }
}

fn tally(label: &str, counts: &BTreeMap<String, i64>) -> String {
    counts.iter().map(|(name, number)| format!("{number} × {label}{}", line(name, 40))).collect::<Vec<_>>().join(", ")
}

fn tool(item: &ToolItem) -> String {
    let name = [&item.tool_name, &item.method, &item.tool_type].into_iter().flatten().next();
    let mut words = vec![line(name.map_or("tool", String::as_str), 80)];
    words.extend(item.status.as_ref().map(|status| line(status, 40)));
    words.extend(item.exit_code.map(|code| format!("(exit {code})")));
    words.extend(item.command.as_ref().map(|command| line(command, 120)));
    words.join(" ")
}

fn liveness(out: &mut String, result: &RunResult, now: Timestamp) {
    let liveness = &result.liveness;
    if let Some(ms) = liveness.last_event_age_ms {
        // A run without a command has no turn that is active, and has not ended.
        let is_over = !liveness.active && result.state.is_ended();
        field(out, if is_over { "ended" } else { "active" }, &format!("{} ago", age_ms(ms)));
    }
    if let Some(lease) = liveness.lease.as_ref().filter(|lease| lease.live) {
        let age = age_ms(lease.heartbeat_age_ms);
        field(out, "runner", &format!("{}; last heartbeat {age} ago", line(&lease.runner_id, 200)));
    }
    if liveness.active {
        field(out, "next", &next_step(liveness, result.run_id, now));
        if let Some(command) = recovery_command(liveness, result.run_id) {
            field(out, "recover", &command);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::terminal::turn_view;

    fn sample(change: impl FnOnce(&mut Value)) -> RunResult {
        let mut body = json!({"runId": format!("run_{:032x}", 1), "commandId": format!("cmd_{:032x}", 1), "attemptId": null,
            "sessionId": "s1", "status": "completed", "runStatus": "pending", "state": "completed", "terminalStatus": "completed",
            "completed": true, "terminalSource": "terminal_status", "reply": "hello",
            "finalResponse": {"text": "hello", "seq": 4, "source": "authoritative-final", "replyAuthority": true,
                "final": true, "textTruncated": false, "outputTruncated": false},
            "finalAssistantSeq": 4, "finalAssistantSource": "x", "finalAssistantTextTruncated": false,
            "finalAssistantOutputTruncated": false, "failureKind": null, "blocker": null, "lastSeq": 9,
            "eventCount": 9, "eventsCapped": false, "nextAfterSeq": 9, "scopedLastSeq": 8, "scopedEventCount": 6,
            "artifactSummary": {"outputEvents": 0, "outputBytes": 0, "truncated": false, "eventsPath": ""},
            "toolCallSummary": {"count": 0, "statusCounts": {}, "exitCodeCounts": {}, "items": []},
            "usage": {"totalTokens": 0, "costUsd": 0.0},
            "liveness": {"phase": "terminal", "active": false, "lastSeq": 9, "lastEventAgeMs": 3000,
                "lastCommandActivity": null, "lease": null, "openToolCalls": [], "resumeAt": null,
                "suggestedAction": "read the result"},
            "supervisor": {"state": "done", "summary": "", "suggestedAction": ""},
            "openPermissions": [], "steerDelivery": null, "chainHead": {"sessionSeq": 9, "hash": "00"}});
        change(&mut body);
        serde_json::from_value(body).unwrap()
    }

    const NOW: &str = "2030-01-01T00:00:00Z";

    fn text(result: &RunResult) -> String {
        render(result, "ostler", NOW.parse().unwrap(), None, Paint::PLAIN)
    }

    fn tail(lines: &str) -> String {
        format!(
            "\nrun      run_{:032x}\ncommand  cmd_{:032x}\nsession  s1\n\
             events   6 of the command, 9 of the run\n{lines}",
            1, 1
        )
    }

    #[test]
    fn a_completed_command_shows_its_reply_first() {
        assert_eq!(text(&sample(|_| ())), format!("completed\n\nhello\n{}", tail("ended    3s ago\n")));
    }

    #[test]
    fn a_script_that_cannot_be_read_is_explained_by_its_guide() {
        let failed = |profile: &str, blocker: &str| {
            sample(|body| {
                body["state"] = "failed".into();
                body["terminalStatus"] = "failed".into();
                body["failureKind"] = "schema-invalid".into();
                body["backendProfile"] = profile.into();
                body["blocker"] = blocker.into();
            })
        };
        let guide = "  read: http://127.0.0.1:4747/guide/scripted-agent\n";
        // Whatever the message is.
        for message in
            ["script step 1: unknown field `sya`", "the script is not valid JSON", "a script has at most 9 steps"]
        {
            let bad_script = failed("scripted", message);
            let hint = "correct the script; docs/scripted-agent.md describes its steps";
            assert!(text(&bad_script).contains(&format!("  next:    {hint}\n")), "{}", text(&bad_script));
            assert_eq!(errors::guide_about(&bad_script, "http://127.0.0.1:4747/").as_deref(), Some(guide));
        }
        let other = failed("codex", "script step 1: unknown field `sya`");
        assert!(text(&other).contains("  next:    correct what the message names, and run it again\n"));
        assert_eq!(errors::guide_about(&other, "http://127.0.0.1:4747/"), None);
    }

    #[test]
    fn a_hint_names_the_profile_of_the_run() {
        let failed = sample(|body| {
            body["state"] = "blocked".into();
            body["terminalStatus"] = "blocked".into();
            body["failureKind"] = "provider-unavailable".into();
            body["backendProfile"] = "mine".into();
        });
        let text = text(&failed);
        assert!(
            text.contains("check the address in `ostler profiles config mine`") && !text.contains("PROFILE"),
            "{text}"
        );
    }

    #[test]
    fn a_reply_that_retention_removed_is_named_as_such() {
        let removed = sample(|body| {
            body["reply"] = Value::Null;
            body["finalResponse"] = Value::Null;
            body["payloadsRemovedAt"] = "2030-01-01T00:00:00.123456Z".into();
        });
        let text = text(&removed);
        assert!(
            text.starts_with("completed\n\nretention removed the texts of this run at 2030-01-01T00:00:00Z\n"),
            "{text}"
        );
    }

    #[test]
    fn a_run_whose_texts_were_removed_is_not_suggested_for_a_retry() {
        let removed = sample(|body| {
            body["state"] = "blocked".into();
            body["terminalStatus"] = "blocked".into();
            body["failureKind"] = "permission-denied".into();
            body["reply"] = Value::Null;
            body["finalResponse"] = Value::Null;
            body["payloadsRemovedAt"] = "2030-01-01T00:00:00Z".into();
        });
        let text = text(&removed);
        let next = "  next:    retention has removed the texts of this run; start a new one with `ostler run`\n";
        assert!(text.contains(next) && !text.contains("retry"), "{text}");
    }

    #[test]
    fn a_failed_command_shows_the_reason_and_a_hint_first() {
        let failed = sample(|body| {
            body["status"] = "failed".into();
            body["state"] = "failed".into();
            body["terminalStatus"] = "failed".into();
            body["failureKind"] = "backend-failed".into();
            body["blocker"] = "the agent fell over".into();
            body["reply"] = Value::Null;
        });
        let text = text(&failed);
        let head = "failed\n  failure: backend-failed\n  blocker: the agent fell over\n  \
            next:    `ostler trace RUN` shows what the agent did before it failed\n\n\
            the last text, which is not the reply:\nhello\n"
            .replace("RUN", &failed.run_id.to_string());
        assert_eq!(text, format!("{head}{}", tail("ended    3s ago\n")));
        let words = turn_view::outcome(&failed, Paint::PLAIN);
        assert!(
            words.starts_with(&format!("failed · {}\n  backend-failed: the agent fell over\nhint: ", failed.run_id))
        );
    }

    #[test]
    fn a_repeated_run_is_named() {
        let retried = sample(|body| body["retryOf"] = format!("run_{:032x}", 9).into());
        assert!(text(&retried).contains(&format!("\nretry of run_{:032x}\n", 9)));
    }

    #[test]
    fn an_open_request_shows_its_command() {
        let waiting = sample(|body| {
            body["openPermissions"] = json!([{"permissionId": format!("prm_{:032x}", 1), "runId": body["runId"],
                "commandId": body["commandId"], "title": "Clean up?", "command": "rm -rf build", "toolCallId": null,
                "digest": "ab".repeat(32), "options": [{"optionId": "yes", "name": "Once", "kind": "allow_once"}],
                "deadline": "2030-01-01T00:10:00Z", "status": "pending", "optionId": null, "resolvedBy": null,
                "resolvedAt": null, "createdAt": "2030-01-01T00:00:00Z"}]);
        });
        let text = text(&waiting);
        assert!(text.contains("permission needed: Clean up?\n  command: rm -rf build\n  digest:  abab"), "{text}");
        assert!(text.contains("\n  answer:  within 10m\n  approve: ostler approve run_0000"), "{text}");
    }

    #[test]
    fn a_run_without_a_command_has_not_ended() {
        let idle = sample(|body| {
            body["commandId"] = Value::Null;
            body["state"] = "waiting".into();
            body["terminalStatus"] = Value::Null;
            body["reply"] = Value::Null;
            body["finalResponse"] = Value::Null;
            body["liveness"]["phase"] = "idle".into();
        });
        let text = text(&idle);
        assert!(text.starts_with("waiting for a command\n") && text.ends_with("\nactive   3s ago\n"), "{text}");
        assert!(!text.contains("ended"), "{text}");
    }

    #[test]
    fn a_profile_without_a_key_is_answered_with_the_command_that_stores_one() {
        let blocked = |rule: &str| {
            let result = sample(|body| {
                body["state"] = "blocked".into();
                body["terminalStatus"] = "blocked".into();
                body["failureKind"] = "secret-unavailable".into();
                body["rule"] = rule.into();
                body["backendProfile"] = "mine".into();
                body["blocker"] = "the words of the message do not matter".into();
            });
            text(&result)
        };
        let keyless = blocked("profile-key");
        let command =
            "  next:    store its credential: `ostler profiles set mine < key.txt`; docs/provider-profiles.md";
        assert!(keyless.contains(command), "{keyless}");
        let tenants = sample(|body| {
            body["state"] = "failed".into();
            body["terminalStatus"] = "failed".into();
            body["failureKind"] = "provider-auth-failed".into();
            body["backendProfile"] = "mine".into();
            body["profileTenantId"] = "acme".into();
        });
        let tenants = text(&tenants);
        assert!(tenants.contains("`ostler profiles set mine --tenant acme`"), "{tenants}");
        // The message of the first names the command, a newer server knows the second.
        for rule in ["profile-secret-missing", "a-newer-rule"] {
            let unset = blocked(rule);
            assert!(unset.contains("docs/provider-profiles.md shows what to write and store"), "{unset}");
        }
        // An older server returns neither the rule nor the profile.
        let unnamed = sample(|body| {
            body["failureKind"] = "secret-unavailable".into();
            body["backendProfile"] = "".into();
        });
        let hint = errors::hint_about(unnamed.failure_kind.unwrap(), &unnamed);
        assert!(hint.starts_with("docs/provider-profiles.md shows") && !hint.contains("PROFILE"), "{hint}");
    }

    #[test]
    fn a_run_whose_starts_all_failed_refers_to_its_jobs() {
        let failed = sample(|body| {
            body["state"] = "failed".into();
            body["terminalStatus"] = "failed".into();
            body["failureKind"] = "infra-failed".into();
            body["rule"] = "runner-starts".into();
        });
        let hint = format!("  next:    `ostler jobs list {}` shows how the last runner ended\n", failed.run_id);
        assert!(text(&failed).contains(&hint), "{}", text(&failed));
        let unnamed = sample(|body| {
            body["state"] = "failed".into();
            body["terminalStatus"] = "failed".into();
            body["failureKind"] = "infra-failed".into();
            body["blocker"] = "no runner could finish it".into();
        });
        assert!(text(&unnamed).contains("  next:    check `ostler doctor`"), "{}", text(&unnamed));
    }

    #[test]
    fn a_long_question_is_wrapped_between_words() {
        let title = "May the agent delete every file below the build directory, and all of the logs that older runs left there?";
        let waiting = sample(|body| {
            body["openPermissions"] = json!([{"permissionId": format!("prm_{:032x}", 1), "runId": body["runId"],
                "commandId": body["commandId"], "title": title, "command": null, "toolCallId": null, "digest": "ab",
                "options": [{"optionId": "yes", "name": "Once", "kind": "allow_once"}],
                "deadline": "2030-01-01T00:10:00Z", "status": "pending", "optionId": null, "resolvedBy": null,
                "resolvedAt": null, "createdAt": "2030-01-01T00:00:00Z"}]);
        });
        let removed = sample(|body| {
            body["reply"] = Value::Null;
            body["finalResponse"] = Value::Null;
            body["payloadsRemovedAt"] = "2030-01-01T00:00:00Z".into();
        });
        for width in [60, 80] {
            let shown = |result| render(result, "ostler", NOW.parse().unwrap(), Some(width), Paint::PLAIN);
            let (question, notice) = (shown(&waiting), shown(&removed));
            // A command to copy is not broken.
            for line in question.lines().chain(notice.lines()).filter(|line| !line.contains(" ostler ")) {
                assert!(output::columns(line) <= width, "{line}");
            }
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words(&question).contains(&format!("permission needed: {title}")), "{question}");
            assert!(words(&notice).contains("of this run at 2030-01-01T00:00:00Z"), "{notice}");
        }
    }

    #[test]
    fn a_running_command_shows_its_state() {
        let running = sample(|body| {
            body["status"] = "running".into();
            body["state"] = "running".into();
            body["terminalStatus"] = Value::Null;
            body["reply"] = Value::Null;
            body["finalResponse"] = Value::Null;
            body["usage"] = json!({"totalTokens": 7, "costUsd": 0.0125});
            body["toolCallSummary"] = json!({"count": 3, "statusCounts": {"completed": 2, "started": 1},
                "exitCodeCounts": {"0": 2}, "items": [{"toolName": "shell", "status": "started", "command": "ls"}]});
            body["liveness"] = json!({"phase": "waiting-tool", "active": true, "lastSeq": 9, "lastEventAgeMs": 61000,
                "lastCommandActivity": null, "openToolCalls": ["t"], "resumeAt": null, "suggestedAction": "wait",
                "lease": {"runnerId": "r1", "leaseEpoch": 1, "live": true, "expiresAt": "2030-01-01T00:00:00Z",
                    "heartbeatAgeMs": 2000}});
        });
        let lines = "usage    7 tokens, $0.0125\ntools    3 calls; 2 × completed, 1 × started; 2 × exit 0\n  shell started ls\n\
            active   1m ago\nrunner   r1; last heartbeat 2s ago\nnext     `ostler trace -f RUN` follows it\n"
            .replace("RUN", &running.run_id.to_string());
        assert_eq!(text(&running), format!("running a tool\n{}", tail(&lines)));
    }
}
