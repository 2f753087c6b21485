//! `--jq`: a filter in the language of jq. It is compiled while the command line is read, so that a mistake in it is
//! reported before any request is made.

use std::{fmt, sync::Arc};

use jaq_core::{
    Compiler, Ctx, Filter, Vars,
    compile::Undefined,
    load::{Arena, Error, File, Loader},
};
use jaq_json::{Val, read};

use crate::{
    suggestions::similar,
    terminal::{
        jq_functions::{JqData, definitions, functions, is_message},
        output::{columns, escape_json, harmless, line, visible},
    },
};

/// Of a message about a value that the filter cannot handle: the message may quote lists and objects.
const MESSAGE_CHARS_MAX: usize = 300;
/// A longer line of an expression is not shown with a mark below its mistake: it would be wrapped, and the mark misplaced.
const MARKED_CHARS_MAX: usize = 200;

/// A compiled expression of jq.
#[derive(Clone)]
pub(crate) struct JqFilter {
    expression: String,
    compiled: Arc<Filter<JqData>>,
}

impl fmt::Debug for JqFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JqFilter").field(&self.expression).finish()
    }
}

impl JqFilter {
    /// Compiles an expression. The error states its first mistake and the place of it.
    pub(crate) fn parse(expression: &str) -> Result<Self, String> {
        let arena = Arena::default();
        let file = File { code: expression, path: () };
        let modules = Loader::new(definitions()).load(&arena, file).map_err(|errors| {
            let mistake = errors.into_iter().next().map(|(_, error)| unreadable(expression, &error));
            mistake.unwrap_or_else(|| "this is not an expression of jq".to_owned())
        })?;
        let compiled = Compiler::default().with_funs(functions()).compile(modules).map_err(|errors| {
            let first = errors.into_iter().flat_map(|(_, errors)| errors).next();
            first.map_or_else(String::new, |(name, what)| undefined(expression, name, &what))
        })?;
        Ok(Self { expression: expression.to_owned(), compiled: Arc::new(compiled) })
    }

    /// Passes each result for a JSON document to `write`, as a line: a string as its text, anything else as JSON. Text for a
    /// terminal cannot control it. The error is a value that the filter cannot handle; results before it were written.
    pub(crate) fn run(&self, json: &str, is_terminal: bool, mut write: impl FnMut(&str)) -> Result<(), String> {
        let input = read::parse_single(json.as_bytes()).map_err(|error| error.to_string())?;
        let ctx = Ctx::<JqData>::new(&self.compiled.lut, Vars::new([]));
        for result in self.compiled.id.run((ctx, input)) {
            // No function ends the filter, so that every exception is an error.
            let result = result.map_err(|stop| match stop.get_err() {
                Ok(error) => text_of(error, &self.expression),
                Err(_) => "the filter has stopped".to_owned(),
            });
            write(&format_result(&result?, is_terminal));
        }
        Ok(())
    }
}

/// The message of an error, without the values that it quotes.
fn text_of(error: jaq_core::Error<Val>, expression: &str) -> String {
    let quoting = error.to_string();
    let message = match error.into_val() {
        // The message of a function is a string like any argument of `error`, and is shown without quotes.
        Val::TStr(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| is_message(text)),
        _ => None,
    };
    line(&without_values(&message.unwrap_or(quoting), expression), MESSAGE_CHARS_MAX)
}

/// Replaces each string of JSON in a message, because it may be a secret. Strings that the expression contains stay.
fn without_values(message: &str, expression: &str) -> String {
    let (mut out, mut rest) = (String::new(), message);
    while let Some((before, after)) = rest.split_once('"') {
        let mut is_escaped = false;
        let end = after.find(|c: char| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        let (string, behind) = end.map_or((after, ""), |end| (&after[..end], &after[end + 1..]));
        let shown = if expression.contains(string) { string } else { "…" };
        out.push_str(&format!("{before}\"{shown}\""));
        rest = behind;
    }
    out + rest
}

fn format_result(result: &Val, is_terminal: bool) -> String {
    let mut text = match result {
        Val::TStr(bytes) | Val::BStr(bytes) => {
            let text = String::from_utf8_lossy(bytes).into_owned();
            if is_terminal { visible(&text) } else { text }
        }
        other => {
            let json = other.to_string();
            if is_terminal { escape_json(&json) } else { json }
        }
    };
    text.push('\n');
    text
}

/// The first mistake of an expression that cannot be parsed.
fn unreadable(expression: &str, error: &Error<&str>) -> String {
    let (expected, found) = match error {
        Error::Io(_) => return "modules cannot be loaded".to_owned(),
        Error::Lex(errors) => match errors.first() {
            Some((expected, found)) => (expected.as_str(), *found),
            None => return String::new(),
        },
        Error::Parse(errors) => match errors.first() {
            Some((expected, found)) => (expected.as_str(), *found),
            None => return String::new(),
        },
    };
    let at = offset(expression, found);
    let what = match at == expression.len() {
        true => format!("it ends where a {expected} should follow"),
        false => format!("there should be a {expected}"),
    };
    marked(expression, at, &what)
}

/// A name that the expression uses and that does not exist.
fn undefined(expression: &str, name: &str, what: &Undefined) -> String {
    let text = match what {
        Undefined::Filter(arity) => {
            let all: Vec<&str> =
                definitions().map(|def| def.name).chain(functions().map(|(name, _, _)| name)).collect();
            let meant = similar(name, all.iter().copied().filter(|known| *known != name));
            let exists = all.contains(&name);
            match (exists, meant) {
                (true, _) => format!("the function {name} takes another number of arguments than {arity}"),
                (false, Some(meant)) => format!("there is no function {name}; did you mean {meant}?"),
                (false, None) => format!("there is no function {name}"),
            }
        }
        other => format!("there is no {} {name}", other.as_str()),
    };
    marked(expression, offset(expression, name), &text)
}

/// Where a part of the expression begins. The end of the expression for a text that is no part of it.
fn offset(expression: &str, part: &str) -> usize {
    let at = (part.as_ptr() as usize).checked_sub(expression.as_ptr() as usize);
    at.filter(|at| expression.is_char_boundary(*at)).unwrap_or(expression.len())
}

/// The message with the number of the character, and the line of the expression with a mark below it.
fn marked(expression: &str, at: usize, what: &str) -> String {
    let before = &expression[..at];
    let number = before.chars().count() + 1;
    let message = format!("{what} (character {number})");
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let plain = |text: &str| harmless(&text.replace('\t', " "));
    let shown = plain(expression[start..].lines().next().unwrap_or_default());
    if shown.chars().count() > MARKED_CHARS_MAX {
        return message;
    }
    format!("{message}\n  {shown}\n  {:1$}^", "", columns(&plain(&expression[start..at])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(expression: &str, json: &str) -> Result<Vec<String>, String> {
        let filter = JqFilter::parse(expression).unwrap_or_else(|mistake| panic!("{expression}: {mistake}"));
        let mut lines = vec![];
        filter.run(json, false, |line| lines.push(line.trim_end_matches('\n').to_owned()))?;
        Ok(lines)
    }

    #[track_caller]
    fn assert_results(expression: &str, json: &str, expected: &[&str]) {
        assert_eq!(results(expression, json).unwrap(), expected, "{expression}");
    }

    #[test]
    fn strings_are_raw_and_anything_else_is_json_on_one_line() {
        let json = r#"{"a": "two\nlines", "b": [1, 2.50, null], "c": {"z": true, "a": "x"}}"#;
        assert_results(".a", json, &["two\nlines"]);
        assert_results(".b[]", json, &["1", "2.50", "null"]);
        assert_results(".b, .c", json, &["[1,2.50,null]", r#"{"z":true,"a":"x"}"#]);
        assert_results(".missing", json, &["null"]);
        assert_results("empty", json, &[]);
        assert_results(".n", r#"{"n": 12345678901234567890}"#, &["12345678901234567890"]);
    }

    #[test]
    fn lists_are_selected_sorted_and_counted() {
        let runs = r#"[{"id": "a", "state": "failed", "cost": 2}, {"id": "b", "state": "completed", "cost": 1}]"#;
        assert_results(r#".[] | select(.state == "failed") | .id"#, runs, &["a"]);
        assert_results("map(.cost) | add", runs, &["3"]);
        assert_results("sort_by(.cost) | map(.id) | join(\" \")", runs, &["b a"]);
        assert_results(
            "group_by(.state) | map({(.[0].state): length}) | add",
            runs,
            &[r#"{"completed":1,"failed":1}"#],
        );
        assert_results("length, (first | keys | length), (.[-1].id | ascii_upcase)", runs, &["2", "3", "B"]);
        assert_results(r#".[0] | to_entries[] | "\(.key)=\(.value)""#, runs, &["id=a", "state=failed", "cost=2"]);
    }

    #[test]
    fn regular_expressions_dates_and_tables_work() {
        let json = r#"["review-12", "Überblick", null]"#;
        assert_results(r#".[0] | test("^re"), test("^RE"), test("^RE"; "i")"#, json, &["true", "false", "true"]);
        assert_results(
            r#".[0] | capture("(?<name>[a-z]+)-(?<number>[0-9]+)")"#,
            json,
            &[r#"{"name":"review","number":"12"}"#],
        );
        assert_results(r#".[1] | match("blick") | .offset, .length, .string"#, json, &["4", "5", "blick"]);
        assert_results(
            r#".[0] | gsub("[0-9]"; "x"), sub("e"; "E"), [scan("[a-z]")][1]"#,
            json,
            &["review-xx", "rEview-12", "e"],
        );
        assert_results(r#".[0] | split("-"), splits("-")"#, json, &[r#"["review","12"]"#, "review", "12"]);
        assert_results(
            r#""2026-11-01T08:00:00Z" | fromdate, (fromdate | todate)"#,
            "null",
            &["1793520000", "2026-11-01T08:00:00Z"],
        );
        assert_results(r#"now - ("2026-01-01T00:00:00.5Z" | fromdate) > 0 or true"#, "null", &["true"]);
        assert_results(r#"["a\"b", 1, null, true] | @csv"#, "null", &[r#""a""b",1,,true"#]);
        assert_results(r#"["a\tb", 1, "c\\d", "e\nf"] | @tsv"#, "null", &["a\\tb\t1\tc\\\\d\te\\nf"]);
        assert_results(
            r#""<a & 'b'>" | @html, @json, @sh"#,
            "null",
            &["&lt;a &amp; &#39;b&#39;&gt;", r#""<a & 'b'>""#, r#"'<a & '\''b'\''>'"#],
        );
    }

    #[test]
    fn a_mistake_is_reported_with_its_place() {
        let mistake = |expression: &str| JqFilter::parse(expression).unwrap_err();
        assert_eq!(
            mistake(".a | frobnicate"),
            "there is no function frobnicate (character 6)\n  .a | frobnicate\n       ^"
        );
        assert_eq!(
            mistake("map(.a) | lenght").lines().next(),
            Some("there is no function lenght; did you mean length? (character 11)")
        );
        assert!(mistake("map(.a; .b)").starts_with("the function map takes another number of arguments than 2"));
        assert!(mistake(".a + $x").starts_with("there is no variable $x (character 6)"));
        assert!(mistake(".[0").contains("closing bracket"), "{}", mistake(".[0"));
        assert!(mistake("{a: }").contains("(character 5)"), "{}", mistake("{a: }"));
        assert!(mistake(". |").starts_with("it ends where a "), "{}", mistake(". |"));
        assert!(mistake("").starts_with("it ends where a "));
        assert!(mistake(".\u{1b}[2J").contains("character 2") && !mistake(".\u{1b}[2J").contains('\u{1b}'));
        assert!(mistake(r#"import "a" as a; .a"#).starts_with("modules cannot be loaded"));
        for absent in ["env", "$ENV", "input", "halt", "debug", "stderr", "halt_error"] {
            assert!(mistake(absent).contains("there is no"), "{absent}");
        }
    }

    #[test]
    fn a_value_that_the_filter_cannot_handle_is_an_error_behind_earlier_results() {
        let filter = JqFilter::parse(".[] | .id").unwrap();
        let mut lines = String::new();
        let failed = filter.run(r#"[{"id": "a"}, 7]"#, false, |line| lines.push_str(line));
        assert_eq!((lines.as_str(), failed.unwrap_err().as_str()), ("a\n", "cannot index 7 with \"id\""));
        let long = format!("[{}1]", "1, ".repeat(10_000));
        assert!(results(".a", &long).unwrap_err().chars().count() <= MESSAGE_CHARS_MAX + 1);
    }

    #[test]
    fn an_error_quotes_no_value() {
        let json = r#"{"secret": "pl4nted", "list": [{"token": "pl4nted \" pl4nted"}], "n": true}"#;
        for (expression, expected) in [
            (".secret | .value", r#"cannot index "…" with "value""#),
            (".list | .value", r#"cannot index [{"…":"…"}] with "value""#),
            (".list - .secret", r#"cannot calculate [{"…":"…"}] - "…""#),
            (".secret | error", r#""…""#),
            ("error(.list)", r#"[{"…":"…"}]"#),
            (r#"error("my own")"#, r#""my own""#),
            (r#"error("no \(.secret)")"#, r#""…""#),
            (".secret | fromjson", r#"cannot parse "…" as JSON"#),
            (".secret | tonumber", r#"cannot parse "…" as JSON"#),
            (".list[0].token | fromdate", r#""…" is not a time"#),
            (".n | length", "true has no length"),
            (r#".secret | test("(")"#, r#""(" is not a regular expression"#),
            (r#".secret as $s | "a" | test($s + "(")"#, r#""…" is not a regular expression"#),
            (r#".secret | test("x"; "q")"#, r#"there is no flag "q" of regular expressions; g, i, n, s and x are"#),
        ] {
            assert_eq!(results(expression, json).unwrap_err(), expected, "{expression}");
        }
    }

    #[test]
    fn texts_in_json_are_read_up_to_a_depth() {
        assert_results("fromjson", r#""{\"a\": [1, null]} 2 \"[[[\"""#, &[r#"{"a":[1,null]}"#, "2", "[[["]);
        assert_results("[.[] | tonumber]", r#"["1", "2.5", 3]"#, &["[1,2.5,3]"]);
        let nested = "[".repeat(100) + &"]".repeat(100);
        assert_results("fromjson", &format!("\"{nested}\""), &[nested.as_str()]);
        let deep = format!("\"{}\"", "[".repeat(100_000));
        assert_eq!(results("fromjson", &deep).unwrap_err(), r#""…" nests too deeply"#);
        // The values before a mistake are results.
        let filter = JqFilter::parse("fromjson").unwrap();
        let mut lines = String::new();
        let failed = filter.run(r#""1 2 x 3""#, false, |line| lines.push_str(line));
        assert_eq!((lines.as_str(), failed.unwrap_err().as_str()), ("1\n2\n", r#"cannot parse "…" as JSON"#));
        assert_results(r#"try fromjson catch "no""#, r#""x""#, &["no"]);
    }

    #[test]
    fn text_for_a_terminal_cannot_control_it() {
        let json = "[\"\\u001b[2J\\u202e\", {\"a\": \"\\u202e\"}]";
        for (is_terminal, expected) in
            [(false, "\u{1b}[2J\u{202e}\n{\"a\":\"\u{202e}\"}\n"), (true, "\\u{1b}[2J\\u{202e}\n{\"a\":\"\\u202e\"}\n")]
        {
            let mut text = String::new();
            JqFilter::parse(".[]").unwrap().run(json, is_terminal, |line| text.push_str(line)).unwrap();
            assert_eq!(text, expected);
        }
    }
}
