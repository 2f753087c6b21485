//! Inside a crate, files import in one direction: a file that uses another is not used by it, directly or through others.
//! Two files may use each other; a circle of three has no first file to read.
//!
//! A file uses the file that *defines* an item. What a module merely re-exports is looked through.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{assert_none, files_below, metadata, root};

const CIRCLE_FILES_MAX: usize = 2;

#[test]
fn files_of_a_crate_import_in_one_direction() {
    let metadata = metadata();
    let manifests = metadata["packages"].as_array().unwrap().iter().map(|package| &package["manifest_path"]);
    let mut offenders = Vec::new();
    for manifest in manifests {
        let folder = Path::new(manifest.as_str().unwrap()).parent().unwrap();
        let sources = folder.join("src");
        if sources.is_dir() {
            let named = folder.strip_prefix(root()).unwrap_or(folder).display().to_string();
            let circles = Crate::read(&sources).circles();
            offenders.extend(circles.into_iter().map(|circle| format!("{named}: {circle}")));
        }
    }
    assert_none(offenders, &format!("circles of more than {CIRCLE_FILES_MAX} files"));
}

#[test]
fn circles_are_found_through_re_exports_aliases_and_macros() {
    let of = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(name, text)| (module_path(Path::new(name)), File::parse(text)));
        Crate { files: files.collect() }.circles().len()
    };
    let closing = ("c.rs", "fn f() { println!(\"{}\", crate::a::A); }");
    assert_eq!(of(&[("a.rs", "use crate::b::B;"), ("b.rs", "use super::c; fn f() { c::g(); }"), closing]), 1);
    assert_eq!(of(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::{self, C};"), ("c.rs", "")]), 0);
    // The parent only passes on what its child defines, so the child's siblings do not use the parent.
    let parent = ("p.rs", "pub use one::One; mod one; mod two; use two::Two; fn f(two: Two) {}");
    assert_eq!(
        of(&[parent, ("p/one.rs", "pub struct One;"), ("p/two.rs", "use super::{One, three};"), ("p/three.rs", "")]),
        0
    );
    assert_eq!(of(&[parent, ("p/one.rs", "use super::f;"), ("p/two.rs", "use super::One;"), ("p/three.rs", "")]), 1);
    // Tests may use everything.
    let tests = "#[cfg(test)] mod tests { use crate::a::A; }";
    assert_eq!(of(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"), ("c.rs", tests)]), 0);
}

#[test]
fn imports_of_modules_are_found_below_braces_and_behind_aliases() {
    let text = "use crate::{db::{Db, Engine}, mesh}; use crate::trust as people; #[cfg(test)] use crate::daemon;";
    let found: Vec<String> = imported_paths(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["crate::db::Db", "crate::db::Engine", "crate::mesh", "crate::trust"]);
}

type ModulePath = Vec<String>;

/// Whole paths of what the imports of a file bring into it, tests excepted.
pub(crate) fn imported_paths(text: &str) -> Vec<ModulePath> {
    File::parse(text).imports.into_values().collect()
}

#[derive(Default)]
struct File {
    /// Names that `use` brings into the file, with their whole paths.
    imports: BTreeMap<String, ModulePath>,
    /// Modules of which everything is imported.
    globs: Vec<ModulePath>,
    /// Names that `pub use` passes on. The file itself uses one only if the name occurs elsewhere in it.
    re_exports: BTreeSet<String>,
    defined: BTreeSet<String>,
    /// Every path in the file, those of imports included, without re-exports.
    paths: BTreeSet<ModulePath>,
    words: BTreeSet<String>,
}

struct Crate {
    files: BTreeMap<ModulePath, File>,
}

fn module_path(file: &Path) -> ModulePath {
    let mut path: ModulePath = file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if path.last().is_some_and(|last| last == "mod") || path == ["lib"] || path == ["main"] {
        path.pop();
    }
    path
}

impl File {
    fn parse(text: &str) -> Self {
        let mut file = Self::default();
        file.scan(text.parse().expect("a source file"), true);
        file
    }

    fn scan(&mut self, tokens: TokenStream, is_module: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut is_test = false;
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    let text = group.stream().to_string().replace(' ', "");
                    is_test |= group.delimiter() == Delimiter::Bracket && text.starts_with("cfg(test)");
                    let ends = group.delimiter() == Delimiter::Brace;
                    if !(is_test && ends) {
                        // What an inline module holds is counted as its file's.
                        let is_module = is_module && ends && at >= 2 && tokens[at - 2].to_string() == "mod";
                        self.scan(group.stream(), is_module);
                    }
                    is_test &= !ends;
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = (at..tokens.len()).find(|&end| tokens[end].to_string() == ";").unwrap_or(tokens.len());
                    if !is_test {
                        let is_public = tokens[..at].iter().rev().take(2).any(|token| token.to_string() == "pub");
                        self.import(&tokens[at + 1..end], &[], is_public);
                    }
                    is_test = false;
                    at = end;
                }
                TokenTree::Ident(word) => {
                    const ITEMS: [&str; 9] =
                        ["struct", "enum", "trait", "type", "fn", "const", "static", "union", "macro_rules"];
                    let after = tokens.get(at + 1..).unwrap_or_default().iter().find_map(ident);
                    let is_lifetime = at > 0 && tokens[at - 1].to_string() == "'";
                    if is_module && !is_lifetime && ITEMS.contains(&word.to_string().as_str()) {
                        self.defined.extend(after);
                    }
                    let (path, length) = path_at(&tokens[at..]);
                    // The declaration of a module is not a use of what it is named like.
                    if at == 0 || tokens[at - 1].to_string() != "mod" {
                        self.words.insert(word.to_string());
                    }
                    if path.len() > 1 {
                        self.paths.insert(path);
                    }
                    at += length - 1;
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => is_test = false,
                _ => {}
            }
            at += 1;
        }
    }

    fn import(&mut self, tree: &[TokenTree], above: &[String], is_public: bool) {
        let (path, length) = path_at(tree);
        let path: ModulePath = above.iter().cloned().chain(path).collect();
        match tree.get(length) {
            Some(TokenTree::Group(group)) => {
                let branches: Vec<TokenTree> = group.stream().into_iter().collect();
                for branch in branches.split(|token| token.to_string() == ",").filter(|branch| !branch.is_empty()) {
                    self.import(branch, &path, is_public);
                }
            }
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => self.globs.push(path),
            alias => {
                let path = if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                    path[..path.len() - 1].to_vec()
                } else {
                    path
                };
                let name = alias.and(tree.last()).and_then(ident).or_else(|| path.last().cloned());
                if let Some(name) = name {
                    if is_public {
                        self.re_exports.insert(name.clone());
                    } else {
                        self.paths.insert(path.clone());
                    }
                    self.imports.insert(name, path);
                }
            }
        }
    }
}

fn ident(token: &TokenTree) -> Option<String> {
    let TokenTree::Ident(ident) = token else { return None };
    Some(ident.to_string())
}

/// The path at the start of the tokens, and how many tokens it takes, `::` at its end included.
fn path_at(tokens: &[TokenTree]) -> (ModulePath, usize) {
    let mut path = vec![];
    let mut at = 0;
    while let Some(name) = tokens.get(at).and_then(ident) {
        path.push(name);
        at += 1;
        let colons = tokens.get(at..at + 2).is_some_and(|next| next.iter().all(|token| token.to_string() == ":"));
        if !colons {
            break;
        }
        at += 2;
    }
    (path, at.max(1).min(tokens.len()))
}

impl Crate {
    fn read(sources: &Path) -> Self {
        let is_test = |path: &Path| path.iter().any(|part| part == "tests" || part == "tests.rs");
        let is_code = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
        let files = files_below(sources).into_iter().filter(|path| is_code(path) && !is_test(path));
        let parse = |path: &Path| File::parse(&fs::read_to_string(sources.join(path)).unwrap());
        Self { files: files.map(|path| (module_path(&path), parse(&path))).collect() }
    }

    /// The module in which the path's last item is defined, and the item; `None` for other crates' items.
    fn definition(&self, user: &ModulePath, path: &[String], depth: usize) -> Option<(ModulePath, String)> {
        let mut module = user.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => (module, rest) = (vec![], &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {}
            first => {
                let is_child = self.files.contains_key(&[user.as_slice(), &[first.to_owned()]].concat());
                let import = self.files.get(user)?.imports.get(first);
                match import {
                    Some(import) if depth < 20 && import.first()? != first => {
                        let whole: ModulePath = import.iter().chain(&rest[1..]).cloned().collect();
                        return self.definition(user, &whole, depth + 1);
                    }
                    _ if is_child || self.files.get(user)?.defined.contains(first) => {}
                    _ => return None,
                }
            }
        }
        while rest.first().is_some_and(|first| first == "super") {
            module.pop()?;
            rest = &rest[1..];
        }
        while let Some(next) = rest.first() {
            let child = [module.as_slice(), std::slice::from_ref(next)].concat();
            if !self.files.contains_key(&child) {
                break;
            }
            (module, rest) = (child, &rest[1..]);
        }
        // A module alone is an alias: what is taken from it is seen where it is used.
        let item = rest.first()?;
        let file = self.files.get(&module)?;
        if depth < 20 && !file.defined.contains(item) {
            if let Some(import) = file.imports.get(item) {
                let whole: ModulePath = import.iter().chain(&rest[1..]).cloned().collect();
                return self.definition(&module, &whole, depth + 1);
            }
            for glob in &file.globs {
                let through: ModulePath = glob.iter().chain([item]).cloned().collect();
                if let Some((found, item)) = self.definition(&module, &through, depth + 1)
                    && self.files[&found].defined.contains(&item)
                {
                    return Some((found, item));
                }
            }
        }
        Some((module, item.clone()))
    }

    /// What each file uses of each other.
    fn uses(&self) -> BTreeMap<&ModulePath, BTreeMap<ModulePath, BTreeSet<String>>> {
        let mut uses: BTreeMap<_, BTreeMap<_, BTreeSet<_>>> = BTreeMap::new();
        for (user, file) in &self.files {
            let passed_on = file.re_exports.intersection(&file.words).map(|name| &file.imports[name]);
            for path in file.paths.iter().chain(passed_on) {
                if let Some((used, item)) = self.definition(user, path, 0)
                    && used != *user
                {
                    uses.entry(user).or_default().entry(used).or_default().insert(item);
                }
            }
        }
        uses
    }

    fn circles(&self) -> Vec<String> {
        let uses = self.uses();
        let reach = |from: &ModulePath| {
            let mut reached: BTreeSet<ModulePath> = BTreeSet::new();
            let mut waiting = vec![from.clone()];
            while let Some(next) = waiting.pop() {
                for used in uses.get(&next).into_iter().flat_map(BTreeMap::keys) {
                    if reached.insert(used.clone()) {
                        waiting.push(used.clone());
                    }
                }
            }
            reached
        };
        let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
            self.files.keys().map(|file| (file, reach(file))).collect();
        let mut seen: BTreeSet<&ModulePath> = BTreeSet::new();
        let mut circles = vec![];
        for file in self.files.keys() {
            let circle: Vec<&ModulePath> = self
                .files
                .keys()
                .filter(|other| reached[file].contains(*other) && reached[other].contains(file))
                .collect();
            if seen.insert(file) && circle.len() > CIRCLE_FILES_MAX {
                seen.extend(circle.iter().copied());
                let mut text = format!("{} files", circle.len());
                for user in &circle {
                    for (used, items) in uses[user].iter().filter(|(used, _)| circle.contains(used)) {
                        let items: Vec<&str> = items.iter().map(String::as_str).collect();
                        text += &format!("\n    {} uses {} of {}", named(user), items.join(", "), named(used));
                    }
                }
                circles.push(text);
            }
        }
        circles
    }
}

fn named(module: &ModulePath) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
}
