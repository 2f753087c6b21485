//! `cargo xtask image`: checks that `deploy/Dockerfile` installs the programs that containers start, builds the image where a builder
//! is installed, and starts a server in it. The checks of the text are also a test, because most machines have no builder.

use std::fs;
use std::path::Path;

use crate::process::{find_on_path, in_workspace, run, workspace_root};

const USAGE: &str = "usage: cargo xtask image [--without-registry --binary FILE]";
const DOCKERFILE: &str = "deploy/Dockerfile";
const TAG: &str = "localhost/ostler:checked";
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
/// Users that containers run as: that of the manifests, and the default of `kubernetes.user_id`. ssh refuses to work for a user that
/// the image does not name.
const USERS: [&str; 2] = ["10001", "65532"];
/// The base without a registry.
const BASE_TAG: &str = "localhost/ostler-base:checked";
const BASE_RELEASE: &str = "bookworm";
/// How the last stage gets the program from the first one.
const COPY_FROM_BUILD: &str = "COPY --from=build /source/target/release/ostler ";
/// Starts a server on a port of the container and uses it.
const USE_THE_IMAGE: &str = r#"
test "$(id -u)" != 0
ssh -T -G localhost > /dev/null
ostler --version
ostler runner --help > /dev/null
ostler serve --listen 127.0.0.1:4747 > /tmp/ready &
server=$!
until test -s /tmp/ready; do kill -0 $server; sleep 0.2; done
ostler run hello < /dev/null
ostler doctor
kill $server
wait $server
"#;

pub(crate) fn image(arguments: &[String]) -> Result<(), String> {
    let binary = binary_of(arguments)?;
    let root = workspace_root()?;
    let dockerfile = read(&root, DOCKERFILE)?;
    let problems = problems(&root, &dockerfile)?;
    if !problems.is_empty() {
        return Err(format!("{DOCKERFILE}:\n  {}", problems.join("\n  ")));
    }
    eprintln!("==> {DOCKERFILE}: it has the programs and users, and the features exist");
    if let Some(binary) = binary {
        build_last_stage(&dockerfile, &root.join(binary))?;
        return use_image("buildah");
    }
    let Some(builder) = BUILDERS.into_iter().find(|name| find_on_path(name).is_some()) else {
        eprintln!("==> image: NOT BUILT, because none of {} is installed", BUILDERS.join(", "));
        return Ok(());
    };
    eprintln!("==> building the image with {builder}");
    run(in_workspace(builder)?.args(["build", "--file", DOCKERFILE, "--tag", TAG, "."]))?;
    use_image(builder)
}

/// The `ostler` for an image that is built without a registry. `None` if a registry is used.
fn binary_of(arguments: &[String]) -> Result<Option<&str>, String> {
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => Ok(None),
        ["--without-registry", "--binary", file] | ["--binary", file, "--without-registry"] => Ok(Some(file)),
        _ => Err(format!("`image` does not know `{}`\n{USAGE}", words.join(" "))),
    }
}

/// Builds the image where no registry can be reached: debootstrap makes its base from Debian's mirror, and `binary` is an `ostler` that
/// was built before. It must run with the C library of that Debian. Needs Buildah, debootstrap and root.
fn build_last_stage(dockerfile: &str, binary: &Path) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| format!("cannot make a scratch directory: {e}"))?;
    let (base, archive) = (scratch.path().join("base"), scratch.path().join("base.tar"));
    eprintln!("==> making a base image of Debian {BASE_RELEASE}");
    run(in_workspace("debootstrap")?.args(["--variant=minbase", BASE_RELEASE]).arg(&base))?;
    // An archive keeps owners and modes, which the copy of a directory does not.
    run(in_workspace("tar")?.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(&base).arg("."))?;
    let container = format!("ostler-base-{}", std::process::id());
    run(in_workspace("buildah")?.args(["from", "--name", &container, "scratch"]))?;
    let added = run(in_workspace("buildah")?.args(["add", "--quiet", &container]).arg(&archive).arg("/"));
    let committed =
        added.and_then(|()| run(in_workspace("buildah")?.args(["commit", "--quiet", &container, BASE_TAG])));
    committed.and(run(in_workspace("buildah")?.args(["rm", &container])))?;
    let context = scratch.path().join("context");
    let unwritten = |e| format!("cannot write to {}: {e}", context.display());
    fs::create_dir(&context).map_err(unwritten)?;
    fs::write(context.join("Dockerfile"), last_stage(dockerfile)?).map_err(unwritten)?;
    fs::copy(binary, context.join("ostler")).map_err(|e| format!("cannot copy {}: {e}", binary.display()))?;
    eprintln!("==> building the last stage of the image with buildah");
    run(in_workspace("buildah")?.args(["build", "--tag", TAG]).arg(&context))
}

/// The last stage of the Dockerfile on the base that was made here, with the program of the build context.
fn last_stage(dockerfile: &str) -> Result<String, String> {
    let stage = dockerfile.rsplit_once("\nFROM ").and_then(|(_, stage)| stage.split_once('\n'));
    let (_, instructions) = stage.ok_or(format!("{DOCKERFILE} has no second FROM"))?;
    Ok(format!("FROM {BASE_TAG}\n{}", instructions.replace(COPY_FROM_BUILD, "COPY ostler ")))
}

/// Runs the programs of the image, and a server.
fn use_image(builder: &str) -> Result<(), String> {
    let programs = PROGRAMS.map(|(program, _)| program).join(" ");
    let script = format!("set -eu\nfor program in {programs}; do command -v $program; done\n{USE_THE_IMAGE}");
    run_in_image(builder, &script)
}

/// Runs a shell script in the image as pods do: not as root, without capabilities, and on a read-only root file system. If Buildah is
/// installed without Podman, the root file system can be written to.
fn run_in_image(builder: &str, script: &str) -> Result<(), String> {
    // Podman has the images that Buildah made. `buildah run` has no read-only root file system.
    let runner = if builder == "buildah" && find_on_path("podman").is_some() { "podman" } else { builder };
    eprintln!("==> starting the image with {runner}");
    if runner != "buildah" {
        let confined = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"];
        let command = ["--network", "none", "--entrypoint", "sh", TAG, "-c", script];
        return run(in_workspace(runner)?.args(["run", "--rm"]).args(confined).args(command));
    }
    eprintln!("==> NOT CHECKED: a read-only root file system, because podman is not installed");
    let container = format!("ostler-checked-{}", std::process::id());
    run(in_workspace(builder)?.args(["from", "--name", &container, TAG]))?;
    let command = ["run", "--cap-drop", "all", "--network", "none", &container, "--", "sh", "-c", script];
    let outcome = run(in_workspace(builder)?.args(command));
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
    let unnamed = USERS.iter().filter(|user| !image.contains(&format!(" --uid {user} ")));
    problems.extend(unnamed.map(|user| format!("the image has no name for the user {user}")));
    // Podman and Buildah reject a short name unless a registry is configured for it.
    let short = dockerfile.lines().filter(|line| line.starts_with("FROM ") && !line.contains('/'));
    problems.extend(short.map(|line| format!("`{line}` does not name its registry")));
    let manifest = read(root, "crates/cli/Cargo.toml")?;
    let features = build.split("--features ").nth(1).and_then(|rest| rest.split_whitespace().next());
    for name in features.into_iter().flat_map(|names| names.split(',')) {
        if !manifest.lines().any(|line| line.starts_with(&format!("{name} = ["))) {
            problems.push(format!("crates/cli has no feature {name}"));
        }
    }
    let wanted = setting(&read(root, "Cargo.toml")?, "rust-version").and_then(|text| version(&text));
    let rust = build.split("/rust:").nth(1).and_then(version);
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
            (" --uid 65532 ", " ", "the image has no name for the user 65532"),
            ("docker.io/library/debian:", "debian:", "`FROM debian:bookworm-slim` does not name its registry"),
        ] {
            let found = problems(&root, &text.replace(part, other)).unwrap();
            assert!(found.len() == 1 && found[0].starts_with(problem), "{found:?}");
        }
    }

    #[test]
    fn an_image_without_a_registry_needs_a_binary() {
        let parse = |line: &str| {
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            binary_of(&arguments).map(|binary| binary.map(str::to_owned))
        };
        assert_eq!(parse(""), Ok(None));
        for line in ["--without-registry --binary a/ostler", "--binary a/ostler --without-registry"] {
            assert_eq!(parse(line), Ok(Some("a/ostler".to_owned())), "{line}");
        }
        for line in ["--without-registry", "--binary a/ostler", "a/ostler"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_last_stage_takes_the_program_from_its_build_context() {
        let text = read(&workspace_root().unwrap(), DOCKERFILE).unwrap();
        let stage = last_stage(&text).unwrap();
        assert!(
            stage.starts_with(&format!("FROM {BASE_TAG}\n")) && stage.contains("\nCOPY ostler /usr/local/bin/ostler\n")
        );
        assert!(!stage.contains("--from"), "{stage}");
    }
}
