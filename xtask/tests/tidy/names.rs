//! A type name means one thing: it is defined once in its crate, and few names are defined in more than one.

use std::collections::BTreeMap;
use std::fs;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{assert_none, root, source_files};

/// Of a hundred type names of the product, how many may be defined more than once.
const SHARED_PERCENT_MAX: usize = 5;
/// Every command of the command line has its own.
const OF_EVERY_COMMAND: [&str; 2] = ["Args", "Verb"];

#[test]
fn a_type_name_is_defined_once() {
    // By name: the files that define it, and whether the definition is public there.
    let mut defined: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for path in source_files() {
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        let is_code = path.extension().is_some_and(|extension| extension == "rs");
        if path.starts_with("crates") && is_code && !is_test {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            for (name, is_public) in types(text.parse().expect("a source file")) {
                defined.entry(name).or_default().push((path.display().to_string(), is_public));
            }
        }
    }
    defined.retain(|name, _| !OF_EVERY_COMMAND.contains(&name.as_str()));

    let mut offenders = Vec::new();
    for (name, definitions) in &defined {
        let mut by_crate: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (path, _) in definitions.iter().filter(|(_, is_public)| *is_public) {
            by_crate.entry(path.split("/src/").next().unwrap()).or_default().push(path);
        }
        let twice = by_crate.into_values().filter(|paths| paths.len() > 1);
        offenders.extend(twice.map(|paths| format!("{name}: {}", paths.join(", "))));
    }
    assert_none(offenders, "public types that are defined twice in a crate");

    let shared: Vec<_> =
        defined.iter().filter(|(_, definitions)| definitions.len() > 1).map(|(name, _)| name).collect();
    let max = defined.len() * SHARED_PERCENT_MAX / 100;
    assert!(
        shared.len() <= max,
        "{} of {} type names are defined twice, at most {max}: {shared:?}",
        shared.len(),
        defined.len()
    );
}

/// The types at the level of the file or of its inline modules, tests excepted, each with whether it is public.
fn types(tokens: TokenStream) -> Vec<(String, bool)> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = vec![];
    let (mut is_public, mut is_test) = (false, false);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if word == "pub" => is_public = true,
            TokenTree::Ident(word) => {
                let is_type = ["struct", "enum", "trait", "type", "union"].iter().any(|kind| word == kind);
                if let (true, false, Some(TokenTree::Ident(name))) = (is_type, is_test, tokens.get(at + 1)) {
                    found.push((name.to_string(), is_public));
                }
            }
            TokenTree::Group(group) => match group.delimiter() {
                Delimiter::Bracket => is_test |= group.stream().to_string().replace(' ', "").starts_with("cfg(test)"),
                Delimiter::Brace => {
                    if at >= 2 && tokens[at - 2].to_string() == "mod" && !is_test {
                        found.extend(types(group.stream()));
                    }
                    (is_public, is_test) = (false, false);
                }
                _ => {}
            },
            TokenTree::Punct(punct) if punct.as_char() == ';' => (is_public, is_test) = (false, false),
            _ => {}
        }
    }
    found
}

#[test]
fn types_are_found_with_their_visibility() {
    let found = |text: &str| types(text.parse().unwrap());
    let of = |name: &str, is_public| (name.to_owned(), is_public);
    assert_eq!(
        found("pub struct A(u8); struct B; pub(crate) enum C { X }"),
        [of("A", true), of("B", false), of("C", true)]
    );
    assert_eq!(found("mod inner { type D = u8; } impl A { fn f() { struct Local; } }"), [of("D", false)]);
    assert_eq!(found("#[cfg(test)] mod tests { struct E; } trait F {}"), [of("F", false)]);
    assert_eq!(found("#[cfg(test)] struct G; struct H;"), [of("H", false)]);
}
