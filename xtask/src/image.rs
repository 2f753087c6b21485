//! `cargo xtask image`: checks that `deploy/Dockerfile` installs the programs that containers start, and builds the image where a
//! builder is installed. The checks are also a test, because most machines have no builder.

use std::fs;
use std::path::Path;

use crate::process::{find_on_path, in_workspace, run, workspace_root};

const DOCKERFILE: &str = "deploy/Dockerfile";
const TAG: &str = "ostler:checked";
/// The first that is installed is used.
const BUILDERS: [&str; 3] = ["buildah", "podman", "docker"];
/// Programs that the server, the manifests and the guides start in containers, and the words of the Dockerfile that provide each.
/// Programs of Debian's base image have none.
const PROGRAMS: [(&str, &str); 9] = [
    ("ostler", "/usr/local/bin/ostler"),
    ("git", " git "),
    ("ssh", " openssh-client "),
    ("sh", ""),
    ("cat", ""),
    ("mv", ""),
    ("rm", ""),
    ("sleep", ""),
    // `kubectl cp` runs it.
    ("tar", ""),
];

pub fn image(arguments: &[String]) -> Result<(), String> {
    if let Some(unknown) = arguments.first() {
        return Err(format!("`image` does not know `{unknown}`\nusage: cargo xtask image"));
    }
    let root = workspace_root()?;
    let problems = problems(&root, &read(&root, DOCKERFILE)?)?;
    if !problems.is_empty() {
        return Err(format!("{DOCKERFILE}:\n  {}", problems.join("\n  ")));
    }
    eprintln!("==> {DOCKERFILE}: it has the programs, and the features exist");
    let Some(builder) = BUILDERS.into_iter().find(|name| find_on_path(name).is_some()) else {
        eprintln!("==> image: NOT BUILT, because none of {} is installed", BUILDERS.join(", "));
        return Ok(());
    };
    eprintln!("==> building the image with {builder}");
    run(in_workspace(builder)?.args(["build", "--file", DOCKERFILE, "--tag", TAG, "."]))?;
    let programs = PROGRAMS.map(|(program, _)| program).join(" ");
    run_in_image(
        builder,
        &format!("for program in {programs}; do command -v $program || exit 1; done; ostler --version"),
    )
}

fn run_in_image(builder: &str, script: &str) -> Result<(), String> {
    if builder != "buildah" {
        return run(in_workspace(builder)?.args(["run", "--rm", "--entrypoint", "sh", TAG, "-c", script]));
    }
    let container = format!("ostler-checked-{}", std::process::id());
    run(in_workspace(builder)?.args(["from", "--name", &container, TAG]))?;
    let outcome = run(in_workspace(builder)?.args(["run", &container, "--", "sh", "-c", script]));
    outcome.and(run(in_workspace(builder)?.args(["rm", &container])))
}

/// What does not fit, one line for each.
fn problems(root: &Path, dockerfile: &str) -> Result<Vec<String>, String> {
    let Some((build, image)) = dockerfile.rsplit_once("\nFROM ") else {
        return Err(format!("{DOCKERFILE} has no second FROM"));
    };
    let image: Vec<_> = image.lines().filter(|line| !line.starts_with('#')).collect();
    let image = image.join("\n");
    let missing = PROGRAMS.iter().filter(|(_, provider)| !image.contains(*provider));
    let mut problems: Vec<_> = missing.map(|(program, _)| format!("{program} is not installed in the image")).collect();
    let manifest = read(root, "crates/cli/Cargo.toml")?;
    let features = build.split("--features ").nth(1).and_then(|rest| rest.split_whitespace().next());
    for name in features.into_iter().flat_map(|names| names.split(',')) {
        if !manifest.lines().any(|line| line.starts_with(&format!("{name} = ["))) {
            problems.push(format!("crates/cli has no feature {name}"));
        }
    }
    let wanted = setting(&read(root, "Cargo.toml")?, "rust-version").and_then(|text| version(&text));
    let rust = build.split("FROM rust:").nth(1).and_then(version);
    if rust.is_none() || rust < wanted {
        problems.push(format!("it builds with Rust {rust:?}, and Cargo.toml needs {wanted:?}"));
    }
    Ok(problems)
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|e| format!("cannot read {path}: {e}"))
}

/// The value of `name = "value"`.
fn setting(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='))?;
    Some(line.trim().trim_matches('"').to_owned())
}

/// `(1, 95)` of `1.95` and of `1.95-slim-bookworm`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_what_containers_start_and_a_dockerfile_that_lacks_something_is_rejected() {
        let root = workspace_root().unwrap();
        let text = read(&root, DOCKERFILE).unwrap();
        assert_eq!(problems(&root, &text).unwrap(), Vec::<String>::new());
        for (part, other, problem) in [
            (" openssh-client ", " ", "ssh is not installed in the image"),
            ("kubernetes,s3", "s3,nonsense", "crates/cli has no feature nonsense"),
            ("rust:1.95", "rust:1.2", "it builds with Rust Some((1, 2))"),
        ] {
            let found = problems(&root, &text.replace(part, other)).unwrap();
            assert!(found.len() == 1 && found[0].starts_with(problem), "{found:?}");
        }
    }
}
