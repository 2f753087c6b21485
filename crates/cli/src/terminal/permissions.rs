//! A permission request as a person sees it before they answer. It always shows the whole command that will run, and
//! nothing in it can drive the terminal.

use ostler_protocol::{
    Timestamp,
    ids::{PermissionId, RunId},
    kernel::permissions::{AskPermission, PermissionOption, PermissionRequest},
    text::clip,
};

use crate::terminal::{
    output::{self, line, short_id},
    times::{age, age_ms},
};

/// How much of a command is shown with the question about it.
const COMMAND_LINES_MAX: usize = 12;
const COMMAND_CHARS_MAX: usize = 400;
/// Between the lines of a command: they begin below the first, behind `  command: `.
const COMMAND_LINE_START: &str = "\n           ";

/// A request with its id, its age, and how long it waits for an answer.
pub(crate) fn describe(request: &PermissionRequest, now: Timestamp, width: Option<usize>) -> String {
    let head = format!("{}: {}", request.permission_id, line(&request.title, 400));
    let text = request_text(&head, request.command.as_deref(), &request.digest, &request.options, width);
    let times = format!("  asked:   {} ago\n{}", age(request.created_at, now), deadline_text(request.deadline, now));
    format!("{text}{times}")
}

/// How long an answer is waited for. A request without an answer in time is cancelled.
pub(crate) fn deadline_text(deadline: Timestamp, now: Timestamp) -> String {
    let left_ms = deadline.as_millisecond() - now.as_millisecond();
    match left_ms {
        1.. => format!("  answer:  within {}\n", age_ms(left_ms)),
        _ => "  answer:  the deadline has passed\n".to_owned(),
    }
}

/// As [`deadline_text`], for a request that is shown as it arrives. Empty if the deadline is unknown, and if it has passed: the
/// request was resolved then, and another line reports how.
pub(crate) fn time_left(deadline: Option<Timestamp>, now: Timestamp) -> String {
    let ahead = deadline.filter(|deadline| deadline.as_millisecond() > now.as_millisecond());
    ahead.map_or_else(String::new, |deadline| deadline_text(deadline, now))
}

pub(crate) fn request_text(
    head: &str,
    command: Option<&str>,
    digest: &str,
    all: &[PermissionOption],
    width: Option<usize>,
) -> String {
    let call = call_text(head, command, width);
    let options = output::folded(&format!("  options: {}", options(all)), width);
    format!("{call}  digest:  {}\n{options}\n", line(digest, 64))
}

/// The whole command below a line about it.
pub(crate) fn call_text(head: &str, command: Option<&str>, width: Option<usize>) -> String {
    format!("{head}\n{}", command.map_or_else(String::new, |command| command_text(command, width)))
}

/// The whole command, for below the line or the row that it belongs to.
pub(crate) fn command_text(command: &str, width: Option<usize>) -> String {
    format!("  command: {}\n", indented(command, width))
}

/// The whole command, its lines aligned below each other. The rest of a line that is wider than the terminal is indented
/// further than a line of the command.
fn indented(command: &str, width: Option<usize>) -> String {
    let text = output::visible(command.trim_end_matches('\n'));
    let lines: Vec<_> = text.split('\n').map(|line| wrap_line(line, width)).collect();
    lines.join(COMMAND_LINE_START)
}

fn wrap_line(line: &str, width: Option<usize>) -> String {
    let indent = COMMAND_LINE_START.len() - 1;
    output::wrap_command(line, indent, indent + 2, width)
}

/// A request that is answered where it is shown. A long command is cut; [`whole_call`] shows the rest.
pub(crate) fn question_text(head: &str, command: Option<&str>, width: Option<usize>) -> String {
    let Some(command) = command else { return format!("{head}\n") };
    let text = output::visible(command.trim_end_matches('\n'));
    let shown = |line| wrap_line(&clip(line, COMMAND_CHARS_MAX), width);
    let lines: Vec<_> = text.lines().take(COMMAND_LINES_MAX).map(shown).collect();
    let rest =
        if has_more_lines(command) { format!("{COMMAND_LINE_START}… v shows the rest") } else { String::new() };
    format!("{head}\n  command: {}{rest}\n", lines.join(COMMAND_LINE_START))
}

/// Whether [`question_text`] cuts the command.
pub(crate) fn has_more_lines(command: &str) -> bool {
    let text = output::visible(command.trim_end_matches('\n'));
    text.lines().count() > COMMAND_LINES_MAX || text.lines().any(|line| line.chars().count() > COMMAND_CHARS_MAX)
}

/// Everything about a request: the whole command, its digest, the options, and how long it waits for an answer.
pub(crate) fn whole_call(ask: &AskPermission, now: Timestamp, width: Option<usize>) -> String {
    let head = format!("{}: {}", ask.permission_id, line(&ask.title, 400));
    let call = ask.tool_call_id.as_ref().map(|call| format!("  call:    {}\n", line(call, 200))).unwrap_or_default();
    let request = request_text(&head, ask.command.as_deref(), &ask.digest, &ask.options, width);
    format!("{request}{call}{}", time_left(ask.deadline, now))
}

/// The commands that answer the request, short enough to be copied whole.
pub(crate) fn answer_commands(invocation: &str, run: RunId, permission: PermissionId) -> String {
    let rest = format!("{} {}", short_id(&run), short_id(&permission));
    format!("  approve: {invocation} approve {rest}\n  deny:    {invocation} deny {rest}\n")
}

/// `allow (Allow once), reject (Reject)`.
pub(crate) fn options(options: &[PermissionOption]) -> String {
    let one = |option: &PermissionOption| format!("{} ({})", line(&option.option_id, 80), line(&option.name, 80));
    options.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_command_is_shown_whole_and_nothing_in_it_is_hidden() {
        let long = format!("echo {}; touch HIDDEN", "a".repeat(4_000));
        assert!(request_text("", Some(&long), "", &[], None).contains(&format!("  command: {long}\n")));
        let hostile = "echo 1\u{1b}[8m\rrm -rf ~\u{202e}\nls\t-l\n";
        let visible = "  command: echo 1\\u{1b}[8m\\rrm -rf ~\\u{202e}\n           ls\t-l\n";
        let text = request_text("", Some(hostile), "", &[], None);
        assert!(text.contains(visible), "{text}");
    }

    #[test]
    fn a_wide_command_is_wrapped_between_words() {
        let command = "gh pr create --fill --base main\nmake";
        let text = "?\n  command: gh pr create \n             --fill --base \n             main\n           make\n";
        assert_eq!(question_text("?", Some(command), Some(28)), text);
        assert!(request_text("?", Some(command), "", &[], Some(28)).starts_with(text));
    }

    #[test]
    fn a_long_command_is_cut_only_where_the_rest_can_be_shown() {
        assert_eq!(question_text("Go on?", Some("make\n"), None), "Go on?\n  command: make\n");
        assert!(!has_more_lines("make\n"));
        let long = "echo\n".repeat(COMMAND_LINES_MAX + 1);
        assert!(has_more_lines(&long) && question_text("", Some(&long), None).ends_with("… v shows the rest\n"));
        let wide = "x".repeat(COMMAND_CHARS_MAX + 1);
        assert!(has_more_lines(&wide) && !question_text("", Some(&wide), None).contains(&wide));
    }

    #[test]
    fn a_request_is_shown_with_its_command_and_its_digest() {
        let digest = "ab".repeat(32);
        let request: PermissionRequest = serde_json::from_value(json!({"permissionId": format!("prm_{:032x}", 1),
            "runId": format!("run_{:032x}", 1), "commandId": format!("cmd_{:032x}", 1), "title": "Clean up?",
            "command": "rm -rf build", "toolCallId": null, "digest": digest,
            "options": [{"optionId": "yes", "name": "Once", "kind": "allow_once"},
                {"optionId": "no", "name": "No", "kind": "reject_once"}],
            "deadline": "2030-01-01T00:10:00Z", "status": "pending", "optionId": null, "resolvedBy": null,
            "resolvedAt": null, "createdAt": "2030-01-01T00:00:00Z"}))
        .unwrap();
        let text = describe(&request, "2030-01-01T00:00:05Z".parse().unwrap(), None);
        let head = format!("prm_{:032x}: Clean up?\n  command: rm -rf build\n  digest:  {digest}\n", 1);
        let rest = "  options: yes (Once), no (No)\n  asked:   5s ago\n  answer:  within 9m\n";
        assert_eq!(text, format!("{head}{rest}"));
        let late = describe(&request, "2030-01-01T00:10:00Z".parse().unwrap(), None);
        assert!(late.ends_with("  answer:  the deadline has passed\n"), "{late}");
    }

    #[test]
    fn the_time_left_is_shown_only_while_there_is_some() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let left = |deadline: &str| time_left(Some(deadline.parse().unwrap()), now);
        assert_eq!(left("2030-01-01T00:04:00Z"), "  answer:  within 4m\n");
        assert_eq!([left("2030-01-01T00:00:00Z"), left("2029-12-31T00:00:00Z"), time_left(None, now)], ["", "", ""]);
    }
}
