//! Patterns of paths: `*`, `?`, `[…]`, `{a,b}` within a name, and `**` for any number of directories. Matching takes time in
//! proportion to the path, whatever the pattern.

use std::fmt::Write;

use regex::Regex;

use crate::Failure;

use super::{
    failures::{FileError, file_failure},
    paths::PATH_DEPTH_MAX,
};

/// The longest pattern.
pub const GLOB_BYTES_MAX: usize = 1_024;
/// How many wildcards, sets and alternatives a pattern may have.
const WILDCARDS_MAX: usize = 128;
/// How deeply alternatives may nest.
const NESTING_MAX: usize = 8;

/// A pattern that can be compared with paths.
#[derive(Clone, Debug)]
pub struct GlobPattern {
    regex: Regex,
    /// The directories that every match starts with.
    prefix: Vec<String>,
    /// How many names a match has at most.
    depth_max: usize,
}

impl GlobPattern {
    /// Reads a pattern. It is relative to a directory, and no part of it is `..`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let invalid = |message: String| file_failure(FileError::Parse, format!("pattern: {message}"));
        if text.is_empty() || text.len() > GLOB_BYTES_MAX || text.contains('\0') {
            return Err(invalid(format!("it must have 1 to {GLOB_BYTES_MAX} bytes, and no zero byte")));
        }
        if text.starts_with('/') || text.split(['/', '{', '}', ',']).any(|part| part == "..") {
            let message = "the pattern leads out of the workspace";
            return Err(file_failure(FileError::Outside, message));
        }
        let text = text.strip_prefix("./").unwrap_or(text);
        let regex = Translation::of(text).map_err(|message| invalid(message.to_owned()))?;
        let regex = Regex::new(&regex).map_err(|_| invalid("it is too complex".to_owned()))?;
        let plain = |part: &&str| !part.is_empty() && !part.contains(['*', '?', '[', '{', '\\', '}', ',']);
        let parts: Vec<_> = text.split('/').collect();
        let directories = &parts[..parts.len() - 1];
        let prefix = directories.iter().copied().take_while(plain).map(str::to_owned).collect();
        let depth_max = if text.contains("**") { PATH_DEPTH_MAX } else { parts.len().min(PATH_DEPTH_MAX) };
        Ok(Self { regex, prefix, depth_max })
    }

    /// Whether a path matches. It is relative to the directory that the search starts in.
    pub fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }

    /// Whether a directory may contain matches, by its path relative to the directory that the search starts in.
    pub fn may_be_below(&self, directory: &str) -> bool {
        let names = || directory.split('/').filter(|name| !name.is_empty());
        names().count() < self.depth_max && names().zip(&self.prefix).all(|(name, wanted)| name == wanted)
    }
}

/// A pattern that becomes a regular expression. No part of it but `**` matches a slash that the pattern does not have.
struct Translation {
    rest: Vec<char>,
    at: usize,
    regex: String,
    wildcards: usize,
    /// In how many alternatives the place is.
    nesting: usize,
}

impl Translation {
    fn of(text: &str) -> Result<String, &'static str> {
        let mut translation =
            Self { rest: text.chars().collect(), at: 0, regex: r"(?s)\A(?:".into(), wildcards: 0, nesting: 0 };
        while let Some(character) = translation.next() {
            translation.add(character)?;
        }
        match translation.nesting {
            0 => Ok(translation.regex + r")\z"),
            _ => Err("a { is not closed"),
        }
    }

    fn next(&mut self) -> Option<char> {
        let character = self.rest.get(self.at).copied();
        self.at += usize::from(character.is_some());
        character
    }

    fn add(&mut self, character: char) -> Result<(), &'static str> {
        if "*?[{".contains(character) {
            self.wildcards += 1;
            if self.wildcards > WILDCARDS_MAX {
                return Err("it has too many wildcards");
            }
        }
        match character {
            '*' => self.add_stars(),
            '?' => self.regex.push_str("[^/]"),
            '[' => self.add_set()?,
            '{' if self.nesting == NESTING_MAX => return Err("its alternatives nest too deeply"),
            '{' => {
                self.nesting += 1;
                self.regex.push_str("(?:");
            }
            '}' if self.nesting > 0 => {
                self.nesting -= 1;
                self.regex.push(')');
            }
            ',' if self.nesting > 0 => self.regex.push('|'),
            '\\' => {
                let literal = self.next().ok_or("a \\ has nothing to escape")?;
                self.add_literal(literal);
            }
            literal => self.add_literal(literal),
        }
        Ok(())
    }

    fn add_literal(&mut self, literal: char) {
        self.regex.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4])));
    }

    /// Adds `*` or `**`, of which the first star was read.
    fn add_stars(&mut self) {
        let starts_name = match self.at.checked_sub(2).map(|before| self.rest[before]) {
            None | Some('/') => true,
            Some(before) => self.nesting > 0 && "{,".contains(before),
        };
        let first = self.at;
        while self.rest.get(self.at) == Some(&'*') {
            self.at += 1;
        }
        let is_double = self.at == first + 1 && starts_name;
        match self.rest.get(self.at) {
            Some('/') if is_double => {
                self.at += 1;
                self.regex.push_str("(?:[^/]+/)*");
            }
            None if is_double => self.regex.push_str(".+"),
            Some(',' | '}') if is_double && self.nesting > 0 => self.regex.push_str(".+"),
            _ => self.regex.push_str("[^/]*"),
        }
    }

    /// Adds a set such as `[a-z]` or `[!a]`, of which the bracket was read.
    fn add_set(&mut self) -> Result<(), &'static str> {
        const OPEN: &str = "a [ is not closed";
        let is_negated = matches!(self.rest.get(self.at), Some('!' | '^'));
        self.at += usize::from(is_negated);
        let mut set = String::new();
        let first = self.at;
        loop {
            let from = match self.next().ok_or(OPEN)? {
                ']' if self.at > first + 1 => break,
                '\\' => self.next().ok_or(OPEN)?,
                character => character,
            };
            let is_range =
                self.rest.get(self.at) == Some(&'-') && self.rest.get(self.at + 1).is_some_and(|end| *end != ']');
            let to = if is_range {
                self.at += 1;
                match self.next().ok_or(OPEN)? {
                    '\\' => self.next().ok_or(OPEN)?,
                    character => character,
                }
            } else {
                from
            };
            if from > to {
                return Err("a range of a set ends before it starts");
            }
            let _ = write!(set, r"\x{{{:x}}}-\x{{{:x}}}", u32::from(from), u32::from(to));
        }
        let sign = if is_negated { "^" } else { "" };
        let _ = write!(self.regex, "[[{sign}{set}]&&[^/]]");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        GlobPattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn patterns_match_names_and_directories() {
        for (pattern, path) in [
            ("*.rs", "a.rs"),
            ("**/*.rs", "a.rs"),
            ("**/*.rs", "a/b/c.rs"),
            ("./src/*", "src/a"),
            ("src/**", "src/a/b"),
            ("a?c", "abc"),
            ("[a-c]*", "bob"),
            ("[!a]", "b"),
            ("*.{ts,tsx}", "a.tsx"),
            ("{a,b/{c,d}}/e", "b/d/e"),
            (".*", ".git"),
            ("\\*", "*"),
            ("**", "a/b"),
            ("{**/a,b}/c", "x/y/a/c"),
            ("a**b", "axyb"),
            ("[]a]", "]"),
            ("[a\\]]", "]"),
            ("[é-ü]", "ö"),
            ("a.(b)", "a.(b)"),
            ("a}b,", "a}b,"),
            ("a{,.bak}", "a"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("*.rs", "a/b.rs"), ("a?c", "a/c"), ("[a-c]", "d"), ("*.{ts,tsx}", "a.js"), ("a", "A")]
        {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_leave_the_workspace_or_cannot_be_read_are_refused() {
        let kind = |text: &str| GlobPattern::parse(text).unwrap_err().details.unwrap()["errorKind"].clone();
        for text in ["/etc/*", "../*", "a/../b", "{..,a}/b"] {
            assert_eq!(kind(text), "path_outside_workspace", "{text}");
        }
        for text in ["", "a\0", "[a", "{a", "[z-a]", "a\\", "[a-", &"{".repeat(9), &"*?".repeat(65), &"a".repeat(1_025)]
        {
            assert_eq!(kind(text), "parse_error", "{text}");
        }
    }

    #[test]
    fn only_directories_that_can_have_matches_are_searched() {
        let pattern = GlobPattern::parse("src/http/*.rs").unwrap();
        for directory in ["", "src", "src/http"] {
            assert!(pattern.may_be_below(directory), "{directory}");
        }
        for directory in ["docs", "src/service", "src/http/deep"] {
            assert!(!pattern.may_be_below(directory), "{directory}");
        }
        assert!(GlobPattern::parse("**/x").unwrap().may_be_below("a/b/c"));
    }

    proptest! {
        #[test]
        fn a_match_is_found_below_its_own_directories(
            pattern in "[ab*?/{},\\[\\]!-]{1,12}", names in prop::collection::vec("[ab]{1,2}", 1..5),
        ) {
            if let Ok(pattern) = GlobPattern::parse(&pattern)
                && pattern.matches(&names.join("/"))
            {
                for depth in 0..names.len() {
                    prop_assert!(pattern.may_be_below(&names[..depth].join("/")), "{names:?} {depth}");
                }
            }
        }
    }
}
