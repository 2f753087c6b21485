//! `cargo xtask dist`, with the program of these tests: what is in the archive, and that its checksums and lists are right.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::fixtures::process::ostler;

fn workspace() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// Runs `cargo xtask dist` as cargo would, without waiting for cargo.
fn dist(out: &Path, arguments: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_ostler"));
    let xtask = program.with_file_name("xtask");
    assert!(xtask.exists(), "{} is built by `--workspace`", xtask.display());
    let mut command = Command::new(xtask);
    command.env("CARGO_MANIFEST_DIR", workspace().join("xtask")).env("CARGO_NET_OFFLINE", "true");
    command.arg("dist").arg("--binary").arg(program).arg("--out").arg(out).args(arguments).output().unwrap()
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn only_archive(out: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    let [sums, archive] = &files[..] else { panic!("{files:?}") };
    assert_eq!(sums.file_name().unwrap(), "SHA256SUMS");
    archive.clone()
}

#[test]
fn the_archive_has_everything_that_an_installation_needs() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let made = dist(&out, &["--profile", "dev"]);
    assert!(made.status.success(), "{made:?}");
    let archive = only_archive(&out);
    succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out));
    succeed(Command::new("tar").arg("--extract").arg("--file").arg(&archive).current_dir(scratch.path()));
    let name = archive.file_name().unwrap().to_str().unwrap().strip_suffix(".tar.gz").unwrap().to_owned();
    let root = scratch.path().join(&name);
    succeed(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&root));
    let version = succeed(&mut ostler(&["--version"]));
    assert_eq!(succeed(Command::new(root.join("bin/ostler")).arg("--version").env_clear()), version);
    assert!(name.starts_with(&format!("ostler-{}-", env!("CARGO_PKG_VERSION"))), "{name}");
    for file in ["LICENSE", "README.md", "CHANGELOG.md", "systemd/ostler.service", "licenses/LIST.md"] {
        assert!(root.join(file).is_file(), "{file}");
    }
    for file in ["completions/ostler.bash", "completions/_ostler", "completions/ostler.fish"] {
        assert!(fs::read_to_string(root.join(file)).unwrap().contains("COMPLETE"), "{file}");
    }
    succeed(Command::new("bash").arg("-n").arg(root.join("completions/ostler.bash")));
    for page in ["ostler", "ostler-run", "ostler-tokens-create", "ostler-mesh-send"] {
        let text = fs::read_to_string(root.join(format!("man/man1/{page}.1"))).unwrap();
        assert!(text.contains(".TH") && text.contains(".SH SYNOPSIS"), "{text}");
    }
    assert!(!root.join("man/man1/ostler-guard.1").exists(), "it is for the server only");
    check_parts(&root);
    // The same contents give the same archive.
    let again = scratch.path().join("again");
    dist(&again, &["--profile", "dev"]);
    assert!(fs::read(archive).unwrap() == fs::read(only_archive(&again)).unwrap());
}

/// The SBOM and the list of licences name the same crates, and only those of the program.
fn check_parts(root: &Path) {
    let sbom: Value = serde_json::from_str(&fs::read_to_string(root.join("sbom.cdx.json")).unwrap()).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(sbom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let list = fs::read_to_string(root.join("licenses/LIST.md")).unwrap();
    let (mut names, mut references) = (BTreeSet::new(), BTreeSet::new());
    for part in sbom["components"].as_array().unwrap() {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        assert!(!part["licenses"][0]["expression"].as_str().unwrap().is_empty(), "{part}");
        references.insert(part["bom-ref"].as_str().unwrap().to_owned());
        names.insert(name.to_owned());
        let is_published = part["hashes"].is_array();
        assert_eq!(is_published, !name.starts_with("ostler"), "{part}");
        assert_eq!(list.contains(&format!("| {name} | {version} |")), is_published, "{name}");
    }
    assert!(names.len() > 100, "{names:?}");
    for name in ["tokio", "rustls", "clap", "ostler-protocol"] {
        assert!(names.contains(name), "{name}");
    }
    for name in ["ostler-testkit", "proptest", "vt100", "xtask"] {
        assert!(!names.contains(name), "{name} is not in the program");
    }
    references.insert(sbom["metadata"]["component"]["bom-ref"].as_str().unwrap().to_owned());
    for row in sbom["dependencies"].as_array().unwrap() {
        let used = row["dependsOn"].as_array().unwrap().iter().chain([&row["ref"]]);
        used.for_each(|used| assert!(references.contains(used.as_str().unwrap()), "{row}"));
    }
    let tokio = fs::read_dir(root.join("licenses")).unwrap().flatten();
    let mut tokio = tokio.filter(|entry| entry.file_name().to_string_lossy().starts_with("tokio-1"));
    assert!(tokio.next().unwrap().path().join("LICENSE").is_file());
}

#[test]
fn a_program_with_faults_on_demand_is_not_released() {
    if !succeed(&mut ostler(&["--version"])).contains("fault-injection") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let refused = dist(&scratch.path().join("out"), &[]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("fault-injection"), "{refused:?}");
}

/// Compiles and runs the build script of the program as cargo does, in a directory that is in no checkout.
#[test]
fn a_build_outside_of_git_does_not_know_its_commit() {
    let scratch = tempfile::tempdir().unwrap();
    let script = scratch.path().join("script");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    succeed(Command::new(rustc).args(["--edition", "2024", "-o"]).arg(&script).arg(source));
    let run = |commit: &str| {
        let mut command = Command::new(&script);
        command.current_dir(scratch.path()).env("CARGO_MANIFEST_DIR", scratch.path());
        command.env("CARGO_PKG_VERSION", "1.2.3").env("CARGO_FEATURE_S3", "1").env("OSTLER_SOURCE_COMMIT", commit);
        // Not the checkout that environment variables may have set for git.
        succeed(command.env_remove("GIT_DIR").env_remove("CARGO_FEATURE_FAULT_INJECTION"))
    };
    assert!(run("").contains("OSTLER_VERSION=1.2.3 (commit unknown, features: s3)"));
    let long = "0123456789abcdef0123456789abcdef01234567";
    assert!(run(long).contains("OSTLER_VERSION=1.2.3 (commit 0123456789ab, features: s3)"));
}

#[test]
fn the_version_names_commit_and_features() {
    let printed = succeed(&mut ostler(&["--version"]));
    let rest = printed.trim().strip_prefix(concat!("ostler ", env!("CARGO_PKG_VERSION"), " (commit ")).unwrap();
    let (commit, features) = rest.split_once(", features: ").unwrap();
    assert!(commit == "unknown" || commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit()), "{printed}");
    assert!(features.ends_with(')'), "{printed}");
}
