//! The real agents, the real clients (AG-UI, MCP, the SDK of the daemon dialect), the reference MCP servers and the other implementation of
//! age that the tests drive, and the Node that some of them run on: from npm. No package's install script is run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::process::{find_on_path, in_workspace, run, workspace_root};
use crate::{debian, installed};

const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends npm
";

/// Where the programs are, each under the variable by which the tests find it.
pub(crate) struct Agents {
    pub variables: [(&'static str, PathBuf); 10],
}

impl Agents {
    pub(crate) fn codex(&self) -> &Path {
        &self.variables[0].1
    }

    pub(crate) fn node(&self) -> &Path {
        &self.variables[1].1
    }

    pub(crate) fn qwen(&self) -> &Path {
        &self.variables[2].1
    }

    /// `None`: one of them is missing.
    fn in_directory(directory: &Path) -> Option<Agents> {
        let modules = directory.join("node_modules");
        let system = format!("linux-{}", processor()?);
        let mcp = modules.join("@modelcontextprotocol");
        let codex = modules.join("@openai").join(format!("codex-{system}")).join("vendor");
        let variables = [
            // The native program: its launcher would need a Node of its own, and is no part of what we drive.
            ("OSTLER_TEST_CODEX", only_child(&codex)?.join("bin").join("codex")),
            ("OSTLER_TEST_NODE", modules.join(format!("node-{system}")).join("bin").join("node")),
            ("OSTLER_TEST_QWEN", modules.join("@qwen-code").join("qwen-code").join("cli-entry.js")),
            ("OSTLER_TEST_AGUI_CLIENT", modules.join("@ag-ui").join("client").join("dist").join("index.mjs")),
            (
                "OSTLER_TEST_QWEN_SDK",
                modules.join("@qwen-code").join("sdk").join("dist").join("daemon").join("index.js"),
            ),
            // The official client of MCP.
            ("OSTLER_TEST_MCP_SDK", mcp.join("sdk").join("dist").join("esm").join("client").join("index.js")),
            // The reference servers of MCP.
            ("OSTLER_TEST_MCP_EVERYTHING", mcp.join("server-everything").join("dist").join("index.js")),
            ("OSTLER_TEST_MCP_FILESYSTEM", mcp.join("server-filesystem").join("dist").join("index.js")),
            // Another implementation of the format of encrypted backups.
            ("OSTLER_TEST_AGE", modules.join("age-encryption").join("dist").join("index.js")),
            // For the example page, which a front-end developer would bundle too.
            ("OSTLER_TEST_ESBUILD", modules.join("@esbuild").join(system).join("bin").join("esbuild")),
        ];
        variables.iter().all(|(_, program)| program.is_file()).then_some(Agents { variables })
    }
}

pub(crate) fn find_or_install() -> Result<Agents, String> {
    let wanted = workspace_root()?.join("xtask").join("npm");
    let is_good = |directory: &Path| Agents::in_directory(directory).is_some();
    let what = "Codex, Qwen Code and its SDK, the clients of AG-UI and MCP, MCP servers, age and Node";
    let directory = find_or_install_packages("node", &wanted, is_good, what).map_err(|reason| {
        format!(
            "the tests drive real agents, and they cannot be had: {reason}\n\
             hint: they come from npm's registry; see that `npm ping` is answered, and try again"
        )
    })?;
    Agents::in_directory(&directory).ok_or_else(|| format!("{} is not whole any more", directory.display()))
}

/// The directory with this name in the cache, which has the packages of a lock file in `node_modules`.
pub(crate) fn find_or_install_packages(
    name: &str,
    wanted: &Path,
    is_good: impl Fn(&Path) -> bool,
    what: &str,
) -> Result<PathBuf, String> {
    let lock = read(&wanted.join("package-lock.json"))?;
    installed::find_or_make(name, &lock, is_good, |new| install(wanted, new, what))
}

fn install(wanted: &Path, new: &Path, what: &str) -> Result<(), String> {
    let npm = find_or_install_npm()?;
    for name in ["package.json", "package-lock.json"] {
        fs::write(new.join(name), read(&wanted.join(name))?).map_err(|e| format!("cannot copy {name}: {e}"))?;
    }
    eprintln!("    installing {what}, once");
    let mut command = in_workspace(npm)?;
    // Not `ci`: it wants the lock file to name optional packages of other systems too, and some were never published.
    // What is installed is what the lock file names, by its hashes, all the same.
    command.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    // Packages that others only recommend, such as compilers, are not in the lock files.
    command.arg("--legacy-peer-deps");
    run(command.current_dir(new).stdout(Stdio::null()))
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
pub(crate) fn processor() -> Option<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Some("x64"),
        "aarch64" => Some("arm64"),
        _ => None,
    }
}
