//! The real agents that the tests drive, and the Node that some of them run on: from npm, exactly as the committed lock
//! file says, into the cache directory. No package's install script is run, and nothing lands where the user's own
//! packages live.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::debian;
use crate::process::{find_on_path, in_workspace, run, workspace_root};
use crate::tools::cache_dir;

/// Written last, with the lock file that was installed: without it an installation is not whole.
const MARK: &str = "installed-lock.json";

const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends npm
";

/// Where the programs are, each under the variable by which the tests find it.
pub struct Agents {
    pub variables: [(&'static str, PathBuf); 3],
}

impl Agents {
    pub fn codex(&self) -> &Path {
        &self.variables[0].1
    }

    /// `None`: one of them is missing.
    fn in_directory(directory: &Path) -> Option<Agents> {
        let modules = directory.join("node_modules");
        let system = format!("linux-{}", processor()?);
        let codex = modules.join("@openai").join(format!("codex-{system}")).join("vendor");
        let variables = [
            // The native program: its launcher would need a Node of its own, and is no part of what we drive.
            ("OSTLER_TEST_CODEX", only_child(&codex)?.join("bin").join("codex")),
            ("OSTLER_TEST_NODE", modules.join(format!("node-{system}")).join("bin").join("node")),
            ("OSTLER_TEST_QWEN", modules.join("@qwen-code").join("qwen-code").join("cli-entry.js")),
        ];
        variables.iter().all(|(_, program)| program.is_file()).then_some(Agents { variables })
    }
}

/// `cargo xtask agents`, for whoever runs single tests: `eval "$(cargo xtask agents)"`.
pub fn print_variables() -> Result<(), String> {
    for (name, program) in find_or_install()?.variables {
        println!("export {name}='{}'", program.display());
    }
    Ok(())
}

pub fn find_or_install() -> Result<Agents, String> {
    let wanted = workspace_root()?.join("xtask").join("npm");
    let lock = read(&wanted.join("package-lock.json"))?;
    let directory = cache_dir()?.join("npm");
    if is_whole(&directory, &lock)
        && let Some(agents) = Agents::in_directory(&directory)
    {
        return Ok(agents);
    }
    install(&wanted, &directory, &lock).map_err(|reason| {
        format!(
            "the tests drive real agents, and they cannot be had: {reason}\n\
             hint: they come from npm's registry; see that `npm ping` is answered, and try again"
        )
    })?;
    Agents::in_directory(&directory)
        .ok_or_else(|| format!("{} is installed, but lacks an agent for this system", directory.display()))
}

/// Beside the place first: whoever looks there never sees half an installation.
fn install(wanted: &Path, directory: &Path, lock: &str) -> Result<(), String> {
    let npm = find_or_install_npm()?;
    let place = directory.parent().ok_or("the cache directory has no parent")?;
    fs::create_dir_all(place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let scratch = tempfile::Builder::new().prefix("npm-").tempdir_in(place);
    let scratch = scratch.map_err(|e| format!("cannot write to {}: {e}", place.display()))?;
    for name in ["package.json", "package-lock.json"] {
        fs::write(scratch.path().join(name), read(&wanted.join(name))?)
            .map_err(|e| format!("cannot copy {name}: {e}"))?;
    }
    eprintln!("    installing Codex, Qwen Code and Node once, into {}", directory.display());
    let mut command = in_workspace(npm)?;
    // Not `ci`: it wants the lock file to name optional packages of other systems too, and some were never published.
    // What is installed is what the lock file names, by its hashes, all the same.
    command.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    command.current_dir(scratch.path()).stdout(Stdio::null());
    run(&mut command)?;
    fs::write(scratch.path().join(MARK), lock).map_err(|e| format!("cannot write {MARK}: {e}"))?;
    // What was there is moved aside before it is deleted: its files may be in use.
    let aside = tempfile::Builder::new().prefix("npm-").tempdir_in(place);
    let aside = aside.map_err(|e| format!("cannot write to {}: {e}", place.display()))?;
    let _ = fs::rename(directory, aside.path().join("old"));
    match fs::rename(scratch.path(), directory) {
        Ok(()) => Ok(()),
        // Somebody else was faster, with the same.
        Err(_) if is_whole(directory, lock) => Ok(()),
        Err(error) => Err(format!("cannot put {} in its place: {error}", directory.display())),
    }
}

fn is_whole(directory: &Path, lock: &str) -> bool {
    fs::read_to_string(directory.join(MARK)).is_ok_and(|installed| installed == lock)
}

fn find_or_install_npm() -> Result<PathBuf, String> {
    if find_on_path("npm").is_none() {
        debian::install("npm", INSTALL_SCRIPT)?;
    }
    find_on_path("npm").ok_or_else(|| "Debian's npm is installed, but not where it should be".into())
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

fn only_child(directory: &Path) -> Option<PathBuf> {
    fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).find(|path| path.is_dir())
}

/// As npm names it.
fn processor() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("x64"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
}
