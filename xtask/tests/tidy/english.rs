//! Plain English: words that `docs/english.md` replaces are not used in comments, in documents, in texts of the product or in the
//! names of tests.

use std::fs;
use std::path::Path;

use crate::{assert_none, documents, product_text, root, source_files};

/// Words of an idiom that outsiders cannot read, and what to write instead. `docs/english.md` has the whole list.
const IDIOMS: [(&str, &str); 11] = [
    ("whoever", "client, caller, server, runner, user"),
    ("somebody", "client, caller, another user"),
    ("nobody", "no client, no caller, no server; or the passive without a subject"),
    ("everybody", "every caller, every user, all servers"),
    ("anybody", "any caller, any user"),
    ("told", "notified, sent, configured"),
    ("heard", "received, read, notified"),
    ("of now", "current"),
    ("anew", "again"),
    ("in vain", "without effect"),
    ("but for", "except"),
];

/// Words that the name of a test does not have. It is a sentence about a client, a server or a thing of theirs.
const NOT_IN_NAMES: [(&str, &str); 24] = [
    ("whoever", "the client, the caller, the user"),
    ("somebody", "another user"),
    ("somebodys", "another user's"),
    ("nobody", "no client, no caller"),
    ("nobodys", "no client's"),
    ("anybody", "any user"),
    ("everybody", "all users"),
    ("everybodys", "all users'"),
    ("tell", "send, report, notify"),
    ("tells", "sends, reports, notifies"),
    ("told", "sent, reported, notified"),
    ("untold", "not sent"),
    ("say", "report, contain, name"),
    ("says", "reports, has, names, shows"),
    ("said", "reported, sent"),
    ("hear", "receive"),
    ("hears", "receives, is notified"),
    ("heard", "received"),
    ("unheard", "not received"),
    ("asked", "requested"),
    ("kept", "stored"),
    ("anew", "again"),
    ("vain", "without effect"),
    ("meanwhile", "concurrently"),
];

/// How the attributes end that make a function a test.
const TEST_ATTRIBUTES: [&str; 4] = ["test]", "test(", "both_engines]", "one_engine]"];

#[test]
fn comments_and_documents_are_in_plain_english() {
    let mut offenders = Vec::new();
    for path in source_files().into_iter().chain(documents()) {
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        // This file and the guide name the words; a migration that was released cannot change.
        let is_exempt = path.extension().is_some_and(|extension| extension == "sql")
            || path.ends_with("tidy/english.rs")
            || path.ends_with("docs/english.md");
        if is_exempt {
            continue;
        }
        for (number, line) in fs::read_to_string(root().join(&path)).unwrap().lines().enumerate() {
            let prose = without_code(if is_code { comment_of(line) } else { line });
            for (idiom, instead) in IDIOMS.iter().filter(|(idiom, _)| has_words(&prose, idiom)) {
                offenders.push(format!("{}:{}: {idiom:?}; write: {instead}", path.display(), number + 1));
            }
        }
    }
    assert_none(offenders, "idioms");
}

/// Failures, hints, help, descriptions of the API and of metrics, log lines: string literals with more than one word. Descriptions
/// that are made from comments are checked with the comments.
#[test]
fn texts_of_the_product_are_in_plain_english() {
    let mut offenders = Vec::new();
    for path in source_files().into_iter().filter(|path| is_product(path)) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (number, literal) in string_literals(product_text(&text)) {
            let prose = without_code(literal);
            let found = IDIOMS.iter().filter(|(idiom, _)| prose.contains(' ') && has_words(&prose, idiom));
            for (idiom, instead) in found {
                offenders.push(format!("{}:{number}: {idiom:?}; write: {instead}", path.display()));
            }
        }
    }
    assert_none(offenders, "idioms in texts");
}

#[test]
fn names_of_tests_are_plain_sentences() {
    let mut offenders = Vec::new();
    for path in source_files() {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for (number, name) in test_names(&text) {
            let words = || name.split('_');
            for (word, instead) in NOT_IN_NAMES.iter().filter(|(word, _)| words().any(|part| part == *word)) {
                offenders.push(format!("{}:{number}: {name}: {word:?}; write: {instead}", path.display()));
            }
            // Phrases, with an underscore for the space.
            let phrases = IDIOMS.iter().filter(|(idiom, _)| idiom.contains(' '));
            for (phrase, instead) in phrases.filter(|(phrase, _)| has_words(&name.replace('_', " "), phrase)) {
                offenders.push(format!("{}:{number}: {name}: {phrase:?}; write: {instead}", path.display()));
            }
        }
    }
    assert_none(offenders, "names of tests");
}

/// Participles that stand for nouns (`asked`, `said`) hide what a thing is. There are few left, and they must not spread.
#[test]
fn participles_are_not_used_as_nouns() {
    const MAX: usize = 160;
    let mut found = 0;
    for path in source_files().into_iter().filter(|path| path.starts_with("crates") && !is_test_file(path)) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        found += words.filter(|word| ["asked", "told", "said", "heard"].contains(word)).count();
    }
    assert!(found <= MAX, "{found} times asked, told, said or heard in product code, at most {MAX}");
}

fn is_product(path: &Path) -> bool {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let is_for_tests = path.starts_with("crates/testkit") || path.starts_with("crates/testkit-macros");
    is_rust && path.starts_with("crates") && !is_for_tests && !is_test_file(path)
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

/// The comment at the end of a line of code. The slashes of a URL do not begin one.
fn comment_of(line: &str) -> &str {
    let mut begins = line.match_indices("//").filter(|(at, _)| !line[..*at].ends_with(':'));
    begins.next().map_or("", |(at, _)| &line[at..])
}

/// The text without what it quotes as code.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect()
}

/// The string literals of Rust code, each with the number of its first line. Escapes are left as they are written.
fn string_literals(text: &str) -> Vec<(usize, &str)> {
    let mut found = vec![];
    let mut at = 0;
    while let Some(offset) = text[at..].find(['"', '/', '\'']) {
        let start = at + offset;
        let rest = &text[start..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let literal = &quoted[..literal_bytes(&text[..start], quoted)];
            found.push((text[..start].matches('\n').count() + 1, literal));
            literal.len() + 2
        } else if rest.starts_with('\'') {
            char_bytes(rest)
        } else {
            1
        };
        at = (start + length).min(text.len());
    }
    found
}

/// The bytes of a string literal up to its closing quote. `before` ends where the literal begins.
fn literal_bytes(before: &str, rest: &str) -> usize {
    let prefix = before.trim_end_matches('#');
    let length = if prefix.ends_with('r') {
        rest.find(&format!("\"{}", &before[prefix.len()..]))
    } else {
        let mut is_escaped = false;
        rest.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        })
    };
    length.unwrap_or(rest.len())
}

/// The bytes of a character literal, with its quotes. 1 for a lifetime.
fn char_bytes(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..].find('\'').map_or(rest.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// The names of the test functions of a file, each with the number of its line.
fn test_names(text: &str) -> Vec<(usize, &str)> {
    let mut found = vec![];
    let mut is_test = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[") {
            // A module of tests is no test.
            let is_condition = line.contains("cfg(");
            is_test |= !is_condition && TEST_ATTRIBUTES.iter().any(|attribute| line.contains(attribute));
        } else if let Some(name) = function_name(line)
            && std::mem::take(&mut is_test)
        {
            found.push((number + 1, name));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let name = line.strip_prefix("fn ")?;
    Some(name.split(['(', '<']).next().unwrap_or_default())
}

/// Whether the text contains these words, as whole words.
fn has_words(text: &str, words: &str) -> bool {
    let text = text.to_lowercase();
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(words).any(|(at, _)| {
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + words.len()..].chars().next())
    })
}

#[test]
fn the_checks_of_english_find_what_they_look_for() {
    assert!(has_words("Not whoever comes", "whoever") && has_words("the manifest of now.", "of now"));
    assert!(!has_words("of nowhere, renewed", "of now") && !has_words("renew anewly", "anew"));
    assert_eq!(comment_of("let x = \"a://nobody\"; // none"), "// none");
    assert_eq!(comment_of("let x = \"a://nobody\";"), "");
    assert_eq!(without_code("the user `nobody` of a system"), "the user  of a system");
    let code = "fn a<'b>() { ('\"', '\\'', \"one \\\" two\") } // \"no\"\nlet c = r#\"three \" four\"#;";
    assert_eq!(string_literals(code), [(1, "one \\\" two"), (2, "three \" four")]);
    let lines = [
        "#[both_engines]",
        "async fn a(engine: Engine) {}",
        "#[cfg(test)]",
        "mod tests {",
        "    fn b() {}",
        "    #[test]",
        "    /// Why.",
        "    fn c() {}",
    ];
    assert_eq!(test_names(&lines.join("\n")), [(2, "a"), (8, "c")]);
}
