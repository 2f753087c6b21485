//! Checks the subjects of commits: `area: what changed`, as `docs/english.md` prescribes. Commits up to a fixed one are older
//! than the rule and are not checked.

use crate::process::{in_workspace, workspace_root};

/// The last commit before the rule.
const BASE: &str = "51d01a4b3ec5f16c4378aba1401916bbda715c5c";
const SUBJECT_CHARS_MAX: usize = 72;

/// Why the commits cannot be checked here. `None` if they can.
pub(crate) fn reason_to_skip() -> Result<Option<String>, String> {
    // In an export, git would look for a repository in the directories above.
    if !workspace_root()?.join(".git").exists() {
        return Ok(Some("this is not a git repository".to_owned()));
    }
    Ok(match git(&["rev-list", "HEAD"]) {
        Ok(history) if history.lines().any(|commit| commit == BASE) => None,
        Ok(_) => Some(format!("the history does not contain {BASE}, which is where the rule starts")),
        Err(message) => Some(message),
    })
}

/// Checks all commits since [`BASE`] except merges.
pub(crate) fn check() -> Result<(), String> {
    let log = git(&["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")])?;
    let failures = failures(&log);
    if failures.is_empty() {
        return Ok(());
    }
    let hint = "hint: `git commit --amend` or `git rebase -i` changes a subject; docs/english.md has the rule";
    Err(format!("commits with subjects against the rule:\n  {}\n{hint}", failures.join("\n  ")))
}

fn git(arguments: &[&str]) -> Result<String, String> {
    let output = in_workspace("git")?.args(arguments).output().map_err(|e| format!("cannot start git: {e}"))?;
    if !output.status.success() {
        return Err(format!("git failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A line for each line of `<hash> <subject>` that breaks the rule.
fn failures(log: &str) -> Vec<String> {
    let failure = |line: &str| {
        let (_, subject) = line.split_once(' ').unwrap_or((line, ""));
        Some(format!("{line}\n    {}", problem(subject)?))
    };
    log.lines().filter_map(failure).collect()
}

/// `None` if the subject follows the rule.
fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_CHARS_MAX {
        return Some(format!("has {length} characters, at most {SUBJECT_CHARS_MAX} are allowed"));
    }
    let is_valid = subject.split_once(": ").is_some_and(|(area, change)| {
        let is_word = |word: &str| !word.is_empty() && word.chars().all(is_area_character);
        area.split(", ").all(is_word) && !change.is_empty() && change.trim() == change
    });
    (!is_valid).then(|| "is not of the form `area: what changed`, with the area in lower case".to_owned())
}

/// An area is a noun of the code, such as `mesh`, `stand-ins` or `run_input`.
fn is_area_character(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || "-_/".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_an_area_and_a_change() {
        for right in
            ["mesh: reject sends to revoked names", "cli, protocol: rename a flag", "stand-ins: x", "run_input: y"]
        {
            assert_eq!(problem(right), None, "{right}");
        }
        let wrong = [
            "",
            "Reject sends to revoked names",
            "mesh reject sends",
            "mesh:",
            "mesh: ",
            "mesh:  two spaces",
            "mesh:no space",
            ": no area",
            "Mesh: capital letter",
            "the mesh: two words",
            "cli,protocol: no space",
            "fixup! mesh: reject sends",
            "Revert \"mesh: reject sends\"",
        ];
        for wrong in wrong {
            assert!(problem(wrong).is_some_and(|problem| problem.contains("area: what changed")), "{wrong:?}");
        }
    }

    #[test]
    fn a_subject_has_at_most_72_characters() {
        let subject = |length: usize| format!("docs: {}", "ü".repeat(length - 6));
        assert_eq!(problem(&subject(SUBJECT_CHARS_MAX)), None);
        let long = problem(&subject(SUBJECT_CHARS_MAX + 1)).unwrap();
        assert_eq!(long, "has 73 characters, at most 72 are allowed");
    }

    #[test]
    fn every_failing_commit_is_listed() {
        let log = "a1 mesh: reject sends\nb2 Fix it\nc3 \nd4 cli: x\n";
        let failing: Vec<String> = failures(log);
        assert_eq!(failing.len(), 2, "{failing:?}");
        assert!(failing[0].starts_with("b2 Fix it\n") && failing[1].starts_with("c3 "), "{failing:?}");
        assert!(failures("").is_empty());
    }
}
