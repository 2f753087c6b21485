//! The functions of `--jq`: those of jaq's libraries that need no system, and a few of our own in place of jaq's optional
//! ones: regular expressions, dates and tables. There is no `env`, no `input`, and nothing that ends the program. Texts in JSON
//! are read by a function of our own, which limits their nesting.

use jaq_core::{
    Cv, Exn, ValR, ValT as _, ValX, ValXs,
    data::JustLut,
    load::{self, parse::Def},
    native::{self, Fun, bome, v},
};
use jaq_json::{Error, Val, read};
use jaq_std::ValT as _;
use ostler_protocol::{Timestamp, limits::JSON_DEPTH_MAX};
use regex::{Match, Regex, RegexBuilder};
use serde::de::IgnoredAny;

use crate::terminal::times::now;

/// The values of a filter, and what it needs while it runs.
pub(super) type JqData = JustLut<Val>;

/// Definitions of jaq's library that need functions which are left out.
const LEFT_OUT: [&str; 16] = [
    "stderr",
    "debug",
    "halt",
    "halt_error",
    "logb",
    "significand",
    "pow10",
    "drem",
    "nexttoward",
    "scalb",
    "gamma",
    "@htmld",
    "@uri",
    "@urid",
    "@base64",
    "@base64d",
];

/// Definitions of our own, in the language of jq.
const OWN: &str = r#"
def @html: tostring
    | . / "&" | join("&amp;") | . / "<" | join("&lt;") | . / ">" | join("&gt;")
    | . / "'" | join("&#39;") | . / "\"" | join("&quot;");
def cell(f): if . == null then "" elif isstring then f elif . >= [] then error("a cell is no array and no object")
    else tostring end;
def @csv: map(cell("\"" + (. / "\"" | join("\"\"")) + "\"")) | join(",");
def @tsv: map(cell(. / "\\" | join("\\\\") | . / "\t" | join("\\t") | . / "\n" | join("\\n") | . / "\r" | join("\\r")))
    | join("\t");
"#;

pub(super) fn definitions() -> impl Iterator<Item = Def<&'static str>> {
    let is_left_out = |def: &Def<&'static str>| LEFT_OUT.contains(&def.name) || def.name == "@html";
    let of_library = jaq_std::defs().filter(move |def| !is_left_out(def));
    let own = load::parse(OWN, |parser| parser.defs()).unwrap_or_default();
    jaq_core::defs().chain(of_library).chain(jaq_json::defs()).chain(own)
}

pub(super) fn functions() -> impl Iterator<Item = Fun<JqData>> {
    let of_library = jaq_std::base_funs().filter(|(name, _, _)| !LEFT_OUT.contains(name));
    let of_json = jaq_json::funs().filter(|(name, _, _)| *name != "fromjson");
    let own: [native::Filter<jaq_core::RunPtr<JqData>>; 7] = [
        ("fromjson", v(0), |cv| from_json(&cv.1)),
        ("matches", v(2), |cv| bome(search(cv, SearchResult::Matches))),
        ("split_", v(2), |cv| bome(search(cv, SearchResult::Rest))),
        ("split_matches", v(2), |cv| bome(search(cv, SearchResult::Both))),
        ("fromdateiso8601", v(0), |cv| bome(seconds(&cv.1))),
        ("todateiso8601", v(0), |cv| bome(date(&cv.1))),
        ("now", v(0), |_| bome(Ok(Val::from(now().as_millisecond() as f64 / 1_000.0)))),
    ];
    jaq_core::funs().chain(of_library).chain(of_json).chain(own.into_iter().map(native::run::<JqData>))
}

/// The messages of functions, of ours and of the libraries: the text before a value in JSON, and the text after it. Some have no
/// value.
const MESSAGES: [(&str, &str); 15] = [
    ("cannot parse ", " as JSON"),
    ("", " nests too deeply"),
    ("there is no flag ", " of regular expressions; g, i, n, s and x are"),
    ("", " is not a regular expression"),
    ("", " is not a time"),
    ("", " is not a number of seconds"),
    ("", " is not a string"),
    ("", " has no length"),
    ("cannot convert ", " to bytes"),
    ("cannot use ", " as character"),
    ("index ", " out of bounds"),
    ("cannot parse as number", ""),
    ("cannot parse as boolean", ""),
    ("split input and separator must be strings", ""),
    ("a cell is no array and no object", ""),
];

/// Whether the text of an error is the message of a function. Otherwise it is a value that the filter has passed to `error`.
pub(super) fn is_message(text: &str) -> bool {
    MESSAGES.iter().any(|(before, after)| {
        let value = text.strip_prefix(*before).and_then(|rest| rest.strip_suffix(*after));
        value.is_some_and(|value| value.is_empty() || serde_json::from_str::<IgnoredAny>(value).is_ok())
    })
}

/// The values of a text in JSON, up to the first mistake. The library's function of this name has no limit: its parser calls
/// itself for each level, and a deep text would exhaust the stack.
fn from_json<'a>(value: &Val) -> ValXs<'a, Val> {
    let text = match value.try_as_utf8_bytes_owned() {
        Ok(text) => text,
        Err(error) => return bome(Err(error)),
    };
    if depth(&text) > JSON_DEPTH_MAX {
        return bome(Err(Error::str(format_args!("{value} nests too deeply"))));
    }
    let mut results: Vec<ValX<'a, Val>> = vec![];
    for parsed in read::parse_many(&text) {
        let failed = |_| Exn::from(Error::str(format_args!("cannot parse {value} as JSON")));
        results.push(parsed.map_err(failed));
        // The parser does not continue behind a mistake.
        if results.last().is_some_and(Result::is_err) {
            break;
        }
    }
    Box::new(results.into_iter())
}

/// How deeply a text in JSON nests. Strings and comments, which the library reads as well, do not count.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'#' => _ = bytes.find(|byte| **byte == b'\n'),
            b'"' => {
                while let Some(byte) = bytes.next().filter(|byte| **byte != b'"') {
                    if *byte == b'\\' {
                        bytes.next();
                    }
                }
            }
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// What a search returns, in the order of the text.
#[derive(Clone, Copy, PartialEq)]
enum SearchResult {
    Matches,
    Rest,
    Both,
}

/// Searches the input for a regular expression; its arguments are the expression and its flags.
fn search(mut cv: Cv<'_, JqData>, wanted: SearchResult) -> ValR<Val> {
    let flags = text(&cv.0.pop_var())?;
    let pattern = text(&cv.0.pop_var())?;
    let subject = text(&cv.1)?;
    let regex = compiled(&pattern, &flags)?;
    let (is_global, ignores_empty) = (flags.contains('g'), flags.contains('n'));
    let (mut parts, mut end) = (vec![], 0);
    for found in regex.captures_iter(&subject) {
        let Some(whole) = found.get(0).filter(|whole| !ignores_empty || !whole.is_empty()) else { continue };
        if wanted != SearchResult::Matches {
            parts.push(Ok(Val::from(subject[end..whole.start()].to_owned())));
            end = whole.end();
        }
        if wanted != SearchResult::Rest {
            let groups = found.iter().zip(regex.capture_names());
            parts.push(groups.filter_map(|(group, name)| Some(group_value(&subject, group?, name))).collect());
        }
        if !is_global {
            break;
        }
    }
    if wanted != SearchResult::Matches {
        parts.push(Ok(Val::from(subject[end..].to_owned())));
    }
    parts.into_iter().collect()
}

fn compiled(pattern: &str, flags: &str) -> Result<Regex, Error> {
    if let Some(unknown) = flags.chars().find(|flag| !"ginxs".contains(*flag)) {
        return Err(Error::str(format_args!(
            "there is no flag {} of regular expressions; g, i, n, s and x are",
            Val::from(unknown.to_string())
        )));
    }
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(flags.contains('i')).ignore_whitespace(flags.contains('x'));
    let built = builder.dot_matches_new_line(flags.contains('s')).build();
    built.map_err(|_| Error::str(format_args!("{} is not a regular expression", Val::from(pattern.to_owned()))))
}

fn group_value(subject: &str, group: Match<'_>, name: Option<&str>) -> ValR<Val> {
    let key = |key: &str| Val::from(key.to_owned());
    // jq counts characters, not bytes.
    let mut fields = vec![
        (key("offset"), Val::from(subject[..group.start()].chars().count())),
        (key("length"), Val::from(group.as_str().chars().count())),
        (key("string"), Val::from(group.as_str().to_owned())),
    ];
    fields.extend(name.map(|name| (key("name"), key(name))));
    Val::from_map(fields)
}

/// The seconds since 1970 of a time such as `2026-11-01T08:00:00Z`.
fn seconds(value: &Val) -> ValR<Val> {
    let time: Timestamp = text(value)?.parse().map_err(|_| Error::str(format_args!("{value} is not a time")))?;
    Ok(match time.subsec_nanosecond() {
        0 => Val::from(time.as_second() as isize),
        _ => Val::from(time.as_microsecond() as f64 / 1e6),
    })
}

fn date(value: &Val) -> ValR<Val> {
    let no_number = || Error::str(format_args!("{value} is not a number of seconds"));
    let micros = value.as_f64().map(|seconds| (seconds * 1e6) as i64).ok_or_else(no_number)?;
    let time = match value.as_isize() {
        Some(seconds) => Timestamp::from_second(seconds as i64),
        None => Timestamp::from_microsecond(micros),
    };
    Ok(Val::from(time.map_err(|_| no_number())?.to_string()))
}

fn text(value: &Val) -> Result<String, Error> {
    let bytes = value.as_utf8_bytes().ok_or_else(|| Error::str(format_args!("{value} is not a string")))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_do_not_count_as_nesting() {
        for (text, expected) in
            [("1 [] {\"a\": []}", 2), ("[[\"[[[\\\"[[[\", {}]]", 3), ("# [[[[ \"\n[[]]", 2), ("]]] [", 1), ("\"[[[", 0)]
        {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_message_of_a_function_has_a_whole_value_or_none() {
        for (text, expected) in [
            ("cannot parse \"a \\\" b\" as JSON", true),
            ("true has no length", true),
            ("cannot parse as number", true),
            ("pl4nted", false),
            ("pl4nted is not a time", false),
            ("cannot parse \"a\" pl4nted as JSON", false),
        ] {
            assert_eq!(is_message(text), expected, "{text}");
        }
    }
}
