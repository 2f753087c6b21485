//! `cargo xtask coverage`: the share of each crate's lines that the tests run. Only crates of this workspace are
//! instrumented, so their dependencies are those of other builds. Each process counts in a mapped file, so that a process
//! that a test kills is counted too.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::{find_on_path, in_workspace, run, workspace_root};
use crate::test::Surroundings;
use crate::tools::{NEXTEST, find_or_install};

/// Versions of LLVM whose tools are looked for on `PATH`, as Debian names them.
const LLVM_VERSIONS: std::ops::RangeInclusive<u32> = 15..=40;
/// The file name of this program's copy that cargo starts instead of the compiler. A shell script would be shorter, but a
/// shell drops variables such as `CARGO_BIN_EXE_ostler-bench`.
const WRAPPER: &str = "rustc-wrapper";
/// The second option lets a process count in its mapped profile from its start, where a kill loses nothing.
const INSTRUMENT: [&str; 4] = ["-C", "instrument-coverage", "-C", "llvm-args=-runtime-counter-relocation"];
/// The variable that names a process's profile.
const PROFILE_VARIABLE: &str = "LLVM_PROFILE_FILE";
/// Folders of a crate that contain sources.
const SOURCE_FOLDERS: [&str; 4] = ["src", "tests", "benches", "examples"];

pub(crate) fn coverage(arguments: &[String]) -> Result<(), String> {
    let (packages, for_nextest) = split_packages(arguments);
    let tools = Tools::find()?;
    eprintln!("==> profiles are read by {}", tools.profdata.display());
    let place = workspace_root()?.join("target").join("coverage");
    let profiles = place.join("profiles");
    let _ = fs::remove_dir_all(&profiles);
    fs::create_dir_all(&profiles).map_err(|e| format!("cannot create {}: {e}", profiles.display()))?;
    // Always the same path: cargo builds everything again for another wrapper.
    let wrapper = place.join(WRAPPER);
    let copied = std::env::current_exe().and_then(|program| fs::copy(program, &wrapper));
    copied.map_err(|e| format!("cannot create {}: {e}", wrapper.display()))?;

    let nextest = find_or_install(&NEXTEST)?;
    let surroundings = Surroundings::start()?;
    let instrumented = |subcommand: &str| -> Result<Command, String> {
        let mut command = surroundings.nextest(&nextest)?;
        command.args(["nextest", subcommand, "--all-features"]).args(&packages);
        command.env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
        // `%m`: one file for each program, to which all its processes add their counts. `%c`: mapped into each process.
        command.env(PROFILE_VARIABLE, profiles.join("%m%c.profraw"));
        Ok(command)
    };
    eprintln!("==> building instrumented tests");
    let list = place.join("programs.json");
    let file = File::create(&list).map_err(|e| format!("cannot write {}: {e}", list.display()))?;
    let format = ["--list-type", "binaries-only", "--message-format", "json"];
    run(instrumented("list")?.args(format).stdout(file))?;
    let list = fs::read(&list).map_err(|e| format!("cannot read {}: {e}", list.display()))?;
    let programs = programs(&serde_json::from_slice(&list).map_err(|e| format!("nextest wrote no JSON: {e}"))?);
    eprintln!("==> tests");
    let outcome = run(instrumented("run")?.args(["--profile", "ci"]).args(for_nextest));
    collect_default_profiles(&workspace_root()?, &profiles);
    let export = tools.export(&profiles, &place.join("merged.profdata"), &programs)?;
    print!("{}", table(&lines_by_crate(&export, &workspace_root()?)));
    outcome.map_err(|e| format!("{e}: the coverage is that of the tests that ran"))
}

/// Becomes the compiler if this program was started as its wrapper. Returns only if it was not, or with the error.
pub(crate) fn wrap_compiler() -> Result<(), String> {
    let mut arguments = std::env::args_os();
    let is_wrapper = arguments.next().is_some_and(|program| Path::new(&program).file_name() == Some(WRAPPER.as_ref()));
    match arguments.next() {
        Some(compiler) if is_wrapper => {
            let error = Command::new(&compiler).args(arguments).args(INSTRUMENT).exec();
            Err(format!("cannot start {}: {error}", compiler.display()))
        }
        _ => Ok(()),
    }
}

/// Moves the profiles of programs that a test started without our environment. They are in the folder of the test's
/// crate, under the compiler's default name.
fn collect_default_profiles(root: &Path, profiles: &Path) {
    let children = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for file in children(root).chain(children(&root.join("crates"))).flat_map(|folder| children(&folder)) {
        let Some(name) = file.file_name().and_then(|name| name.to_str()) else { continue };
        if name.starts_with("default_") && name.ends_with(".profraw") {
            // One that cannot be moved is only missing from the counts.
            let _ = fs::rename(&file, profiles.join(name));
        }
    }
}

/// Separates the packages to build, all by default, from the arguments of the test run.
fn split_packages(arguments: &[String]) -> (Vec<&str>, Vec<&str>) {
    let (mut packages, mut others) = (vec![], vec![]);
    let mut rest = arguments.iter().map(String::as_str).skip_while(|argument| *argument == "--");
    while let Some(argument) = rest.next() {
        match argument {
            "-p" | "--package" => packages.extend([Some(argument), rest.next()].into_iter().flatten()),
            _ => others.push(argument),
        }
    }
    if packages.is_empty() {
        packages.push("--workspace");
    }
    (packages, others)
}

/// Every program that nextest's list mentions: tests, and the programs that tests start.
fn programs(list: &Value) -> Vec<PathBuf> {
    let meta = &list["rust-build-meta"];
    let target = Path::new(meta["target-directory"].as_str().unwrap_or_default());
    let tests = list["rust-binaries"].as_object().into_iter().flat_map(|tests| tests.values());
    let tests = tests.filter_map(|test| test["binary-path"].as_str()).map(PathBuf::from);
    let others = meta["non-test-binaries"].as_object().into_iter().flat_map(|packages| packages.values());
    let others = others.filter_map(Value::as_array).flatten().filter_map(|binary| binary["path"].as_str());
    tests.chain(others.map(|path| target.join(path))).collect()
}

/// LLVM's programs that read profiles.
struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// The first tools that can read a profile of this compiler. Formats change between versions of LLVM, so each
    /// candidate is tried with the profile of an empty program.
    fn find() -> Result<Self, String> {
        let scratch = tempfile::tempdir().map_err(|e| format!("cannot create a scratch directory: {e}"))?;
        let (source, program) = (scratch.path().join("empty.rs"), scratch.path().join("empty"));
        fs::write(&source, "fn main() {}\n").map_err(|e| format!("cannot write {}: {e}", source.display()))?;
        let mut compiler = in_workspace(rustc())?;
        run(compiler.args(INSTRUMENT).arg("-o").arg(&program).arg(&source))?;
        run(in_workspace(&program)?.env(PROFILE_VARIABLE, scratch.path().join("empty.profraw")))?;
        let merged = scratch.path().join("merged.profdata");
        let candidates = Self::candidates()?;
        let found: Vec<String> = candidates.iter().map(|tools| tools.profdata.display().to_string()).collect();
        let reads = |tools: &Self| tools.export(scratch.path(), &merged, std::slice::from_ref(&program)).is_ok();
        candidates.into_iter().find(reads).ok_or_else(|| {
            let found =
                if found.is_empty() { "none was found".to_owned() } else { format!("tried {}", found.join(", ")) };
            format!(
                "no LLVM tools on this machine can read the profiles of this compiler ({found})\n\
                 hint: `rustup component add llvm-tools`, or on Debian `apt-get install llvm-19`"
            )
        })
    }

    /// Those of the toolchain first, which always match, then the newest on `PATH`.
    fn candidates() -> Result<Vec<Self>, String> {
        let libraries = in_workspace(rustc())?.args(["--print", "target-libdir"]).output();
        let libraries = libraries.map_err(|e| format!("cannot start rustc: {e}"))?.stdout;
        let toolchain = Path::new(String::from_utf8_lossy(&libraries).trim()).with_file_name("bin");
        let own = ["llvm-profdata", "llvm-cov"].map(|name| Some(toolchain.join(name)).filter(|path| path.is_file()));
        let suffixes = LLVM_VERSIONS.rev().map(|version| format!("-{version}")).chain([String::new()]);
        let on_path =
            suffixes.map(|suffix| ["llvm-profdata", "llvm-cov"].map(|name| find_on_path(&(name.to_owned() + &suffix))));
        let both = |[profdata, cov]: [Option<PathBuf>; 2]| Some(Self { profdata: profdata?, cov: cov? });
        Ok([own].into_iter().chain(on_path).filter_map(both).collect())
    }

    /// The summary of each source file, from all profiles in a directory.
    fn export(&self, profiles: &Path, merged: &Path, programs: &[PathBuf]) -> Result<Value, String> {
        let mut merge = Command::new(&self.profdata);
        // A file that was cut off when its process was killed must not spoil the others.
        merge.args(["merge", "-sparse", "-failure-mode=all", "-o"]).arg(merged);
        let files = fs::read_dir(profiles).map_err(|e| format!("cannot read {}: {e}", profiles.display()))?.flatten();
        let raw = files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "profraw"));
        successful_output(merge.args(raw))?;
        let mut cov = Command::new(&self.cov);
        cov.args(["export", "-summary-only", "-instr-profile"]).arg(merged);
        for program in programs {
            cov.arg("-object").arg(program);
        }
        serde_json::from_slice(&successful_output(&mut cov)?).map_err(|e| format!("llvm-cov wrote no JSON: {e}"))
    }
}

fn rustc() -> std::ffi::OsString {
    std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

fn successful_output(command: &mut Command) -> Result<Vec<u8>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot start {program}: {e}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{program} failed: {}", errors.trim())) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lines {
    count: u64,
    covered: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        if self.count == 0 { 100.0 } else { self.covered as f64 * 100.0 / self.count as f64 }
    }
}

/// Sums of the files of each crate below `root`. Files of tests are left out: they nearly always run whole.
fn lines_by_crate(export: &Value, root: &Path) -> BTreeMap<String, Lines> {
    let mut crates: BTreeMap<String, Lines> = BTreeMap::new();
    for file in export["data"][0]["files"].as_array().into_iter().flatten() {
        let path = Path::new(file["filename"].as_str().unwrap_or_default());
        let Some(name) = path.strip_prefix(root).ok().and_then(crate_of) else { continue };
        let lines = &file["summary"]["lines"];
        let sum = crates.entry(name).or_default();
        sum.count += lines["count"].as_u64().unwrap_or(0);
        sum.covered += lines["covered"].as_u64().unwrap_or(0);
    }
    crates
}

/// The folder of a source file's crate. `None` for files of tests, and for files that were built or fetched.
fn crate_of(path: &Path) -> Option<String> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let is_test = parts.iter().any(|part| *part == "tests" || *part == "tests.rs");
    let source = parts.iter().position(|part| SOURCE_FOLDERS.contains(part))?;
    (!is_test && parts[0] != "target").then(|| parts[..source].join("/"))
}

fn table(crates: &BTreeMap<String, Lines>) -> String {
    let mut out = format!("\n{:<24} {:>8} {:>8} {:>8}\n", "crate", "lines", "covered", "percent");
    let total = crates.values().fold(Lines::default(), |sum, lines| Lines {
        count: sum.count + lines.count,
        covered: sum.covered + lines.covered,
    });
    for (name, lines) in crates.iter().map(|(name, lines)| (name.as_str(), *lines)).chain([("total", total)]) {
        let _ = writeln!(out, "{name:<24} {:>8} {:>8} {:>8.1}", lines.count, lines.covered, lines.percent());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn packages_are_separated_from_the_arguments_of_the_run() {
        let split = |line: &str| {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let (packages, others) = split_packages(&arguments);
            (packages.join(" "), others.join(" "))
        };
        assert_eq!(split(""), ("--workspace".into(), String::new()));
        assert_eq!(split("-- -E test(x)"), ("--workspace".into(), "-E test(x)".into()));
        assert_eq!(split("--no-capture -p a --package b x"), ("-p a --package b".into(), "--no-capture x".into()));
    }

    #[test]
    fn lines_are_summed_by_crate_without_tests_and_dependencies() {
        let file = |path: &str, count: u64, covered: u64| json!({"filename": path, "summary": {"lines": {"count": count, "covered": covered}}});
        let export = json!({"data": [{"files": [
            file("/w/crates/store/src/lane.rs", 10, 5),
            file("/w/crates/store/src/kernel/runs.rs", 30, 25),
            file("/w/crates/store/src/lane/tests.rs", 50, 50),
            file("/w/crates/store/tests/store/main.rs", 50, 50),
            file("/w/bench/src/main.rs", 4, 0),
            file("/w/target/debug/build/x/src/out.rs", 4, 0),
            file("/registry/src/other.rs", 7, 7),
        ]}]});
        let crates = lines_by_crate(&export, Path::new("/w"));
        let expected = [("bench", Lines { count: 4, covered: 0 }), ("crates/store", Lines { count: 40, covered: 30 })];
        assert_eq!(crates, BTreeMap::from(expected.map(|(name, lines)| (name.to_owned(), lines))));
        let table = table(&crates);
        assert!(table.contains("crates/store                   40       30     75.0\n"), "{table}");
        assert!(table.ends_with("total                          44       30     68.2\n"), "{table}");
    }

    #[test]
    fn profiles_in_the_folder_of_a_crate_are_moved() {
        let place = tempfile::tempdir().unwrap();
        let (crate_folder, profiles) = (place.path().join("crates/cli"), place.path().join("profiles"));
        fs::create_dir_all(&crate_folder).unwrap();
        fs::create_dir_all(&profiles).unwrap();
        for name in ["default_1_0.profraw", "other.profraw", "default_1_0.txt"] {
            fs::write(crate_folder.join(name), "").unwrap();
        }
        collect_default_profiles(place.path(), &profiles);
        assert!(profiles.join("default_1_0.profraw").is_file());
        assert_eq!((fs::read_dir(&profiles).unwrap().count(), fs::read_dir(&crate_folder).unwrap().count()), (1, 2));
    }

    #[test]
    fn programs_of_tests_and_those_that_tests_start_are_found() {
        let list = json!({
            "rust-build-meta": {
                "target-directory": "/w/target",
                "non-test-binaries": {"cli 0.1.0": [{"name": "ostler", "kind": "bin-exe", "path": "debug/ostler"}]},
            },
            "rust-binaries": {"store": {"binary-path": "/w/target/debug/deps/store-1"}},
        });
        assert_eq!(programs(&list), [Path::new("/w/target/debug/deps/store-1"), Path::new("/w/target/debug/ostler")]);
        assert!(programs(&json!({})).is_empty());
    }
}
