//! Paths and patterns that clients of the daemon send.

use ostler_protocol::daemon::files::{GLOB_BYTES_MAX, GlobPattern, PATH_BYTES_MAX, PATH_DEPTH_MAX, WorkspacePath};

use crate::Target;

const ROOT: &str = "/srv/work space";

pub(crate) static PATH: Target = Target {
    name: "path",
    seeds: paths,
    words: &[
        "/",
        "//",
        "..",
        "../",
        "/..",
        ".",
        "./",
        "\\",
        "\0",
        "%2e%2e",
        "~",
        "/srv/work space",
        "é",
        "\u{202e}",
        "a",
    ],
    attempt: path,
};

fn paths() -> Vec<Vec<u8>> {
    let paths = [
        "src/main.rs",
        "./a/../b",
        "../outside",
        "/srv/work space/src/lib.rs",
        "/srv/work space/../other/secret",
        "/srv/work spaces/a",
        "/etc/passwd",
        "a/b/c/d/e/f/g/h",
        ".git/config",
        "...",
    ];
    paths.map(|path| path.as_bytes().to_vec()).into()
}

/// An accepted path has plain names, and means the same when it is sent again.
fn path(case: &[u8]) {
    let text = String::from_utf8_lossy(case);
    if let Ok(path) = WorkspacePath::parse(&text, ROOT) {
        assert!(text.len() <= PATH_BYTES_MAX && path.names().count() <= PATH_DEPTH_MAX);
        assert!(path.names().all(|name| !["", ".", ".."].contains(&name) && !name.contains(['/', '\0'])));
        let shown = path.to_string();
        assert_eq!(WorkspacePath::parse(&shown, ROOT).ok().as_ref(), Some(&path));
        assert_eq!(WorkspacePath::parse(&format!("{ROOT}/{shown}"), ROOT).ok().as_ref(), Some(&path));
    }
}

pub(crate) static GLOB: Target = Target {
    name: "glob",
    seeds: globs,
    words: &[
        "*",
        "**",
        "/**/",
        "?",
        "[",
        "]",
        "[!",
        "[^",
        "-",
        "{",
        "}",
        ",",
        "{,}",
        "\\",
        "/",
        "..",
        "\0",
        "é",
        "\u{10ffff}",
    ],
    attempt: glob,
};

fn globs() -> Vec<Vec<u8>> {
    let globs =
        ["**/*.rs", "src/*.{ts,tsx}", "[a-z]*/?", "{a,b/{c,d}}/**", "./*", "\\*", "**", "[!a-f]", "a/**/b/**/c"];
    globs.map(|glob| glob.as_bytes().to_vec()).into()
}

/// An accepted pattern names nothing outside, and whatever it matches is looked for.
fn glob(case: &[u8]) {
    let text = String::from_utf8_lossy(case);
    let Ok(pattern) = GlobPattern::parse(&text) else { return };
    assert!(text.len() <= GLOB_BYTES_MAX && !text.starts_with('/'));
    for path in ["a", "a/b", "a/b/c", "src/main.rs", "é/x", "*", &"a/".repeat(60), &"a".repeat(255)] {
        if pattern.matches(path) {
            let above = path.char_indices().filter(|(_, character)| *character == '/').map(|(at, _)| &path[..at]);
            assert!(above.chain([""]).all(|directory| pattern.may_be_below(directory)), "{path}");
        }
    }
}
