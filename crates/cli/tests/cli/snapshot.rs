//! Whole command runs as they read, kept beside the tests. `OSTLER_BLESS=1` writes them anew. What differs from run to run
//! is masked: ids, digests, addresses, times and the scratch directory.

use std::{path::PathBuf, process::Output};

use regex::Regex;

use crate::home::Home;

#[track_caller]
pub fn assert_snapshot(name: &str, home: &Home, text: &str) {
    let masked = mask(home, text);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cli/snapshots/{name}.txt"));
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &masked).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == masked, "{name} reads otherwise; OSTLER_BLESS=1 accepts it.\nkept:\n{kept}\nnow:\n{masked}");
}

/// Code, stdout and stderr of a command that was not at a terminal.
pub fn piped(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(!stdout.contains('\x1b') && !stderr.contains('\x1b'), "piped output has no escapes");
    format!("exit code {}\n--- stdout\n{stdout}--- stderr\n{stderr}", output.status.code().unwrap())
}

pub fn mask(home: &Home, text: &str) -> String {
    let scratch = home.path("").display().to_string();
    let text = text.replace(scratch.trim_end_matches('/'), "SCRATCH");
    let masks = [
        (r"\b(run|ses|cmd|prm|job|att|tok|trc)_[0-9a-f]{32}\b", "${1}_ID"),
        (r"\brunner-[0-9a-f]{16}\b", "runner-ID"),
        (r"\b[0-9a-f]{64}\b", "DIGEST"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
        (r"\+ *\d+\.\d{3}s", "+TIME"),
        (r"\bin \d+\.\ds\b", "in TIME"),
        (r"\b\d+ ms\b", "TIME ms"),
        (r"\b\d+s ago\b *", "TIME ago "),
        (r"\d{4}-\d{2}-\d{2}T[0-9:.]+Z", "INSTANT"),
        (r"· \d+s ·", "· TIME ·"),
        (r"\d+\.\d GiB", "SIZE"),
        (r"\bLandlock \d+", "Landlock N"),
    ];
    masks.iter().fold(text, |text, (pattern, mask)| Regex::new(pattern).unwrap().replace_all(&text, *mask).into_owned())
}
