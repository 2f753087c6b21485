//! The levels of lints are set in one place, `[workspace.lints]` of the root manifest, and are the same for every crate. Source
//! files only expect a lint, with a reason.

use std::fs;
use std::path::PathBuf;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{assert_none, metadata, root, source_files};

/// The attributes that set the level of a lint. `expect` is not one of them: it names an exception that must exist.
const LEVELS: [&str; 4] = ["allow", "warn", "deny", "forbid"];

#[test]
fn every_crate_uses_the_lints_of_the_workspace() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let without = packages.iter().filter(|package| {
        let manifest = fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        !uses_workspace_lints(&manifest)
    });
    let offenders = without.map(|package| package["name"].as_str().unwrap().to_owned()).collect();
    assert_none(offenders, "crates without `[lints]` and `workspace = true`");
}

#[test]
fn no_source_file_sets_the_level_of_a_lint() {
    let is_code = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let mut offenders = vec![];
    for path in source_files().into_iter().filter(is_code) {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let attributes = level_attributes(text.parse().expect("a source file"));
        offenders.extend(attributes.into_iter().map(|attribute| format!("{}: #[{attribute}]", path.display())));
    }
    assert_none(offenders, "levels of lints outside of `[workspace.lints]`");
}

/// Cargo rejects a `[lints]` table that has levels of its own besides `workspace`.
fn uses_workspace_lints(manifest: &str) -> bool {
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"])
}

/// The attributes of a file that set the level of a lint, also those inside `cfg_attr`.
fn level_attributes(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = vec![];
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let is_mark = |at: Option<usize>, mark: char| {
            at.is_some_and(|at| matches!(&tokens[at], TokenTree::Punct(punct) if punct.as_char() == mark))
        };
        let is_outer = is_mark(at.checked_sub(1), '#');
        let is_inner = is_mark(at.checked_sub(1), '!') && is_mark(at.checked_sub(2), '#');
        if group.delimiter() == Delimiter::Bracket && (is_outer || is_inner) {
            if sets_level(group.stream()) {
                found.push(group.stream().to_string());
            }
        } else {
            found.extend(level_attributes(group.stream()));
        }
    }
    found
}

/// Whether an attribute is a level with its lints, or a `cfg_attr` with one.
fn sets_level(attribute: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(name), TokenTree::Group(_), ..] if LEVELS.iter().any(|level| name == level) => true,
        [TokenTree::Ident(name), TokenTree::Group(inner)] if name == "cfg_attr" => {
            let inner: Vec<TokenTree> = inner.stream().into_iter().collect();
            let after_comma = inner.split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','));
            after_comma.skip(1).any(|attribute| sets_level(attribute.iter().cloned().collect()))
        }
        _ => false,
    }
}

#[test]
fn the_checks_find_levels_of_lints() {
    let found = |text: &str| level_attributes(text.parse().unwrap()).len();
    assert_eq!(found("#![warn(unreachable_pub)] mod a { #[allow(dead_code)] fn f() {} }"), 2);
    assert_eq!(found("#![cfg_attr(not(test), deny(unused), allow(dead_code))]"), 1);
    assert_eq!(found("#[expect(dead_code, reason = \"allow(x)\")] fn f() { allow(1); let a = [warn(2)]; }"), 0);
    assert_eq!(found("#[cfg(allow)] #[serde(deny_unknown_fields)] struct A;"), 0);

    assert!(uses_workspace_lints("[package]\n\n[lints]\nworkspace = true\n"));
    assert!(!uses_workspace_lints("[package]\n\n[lints.rust]\nunsafe_code = \"allow\"\n"));
}
