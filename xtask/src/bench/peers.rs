//! `cargo xtask bench --peers`: installs what users would pick instead of this server, pinned, into the cache directory, and
//! lets the load generator drive all of them. A peer that cannot be installed does not stop the others: the generator
//! reports it with the reason.

mod installation;
mod nats;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::equipment::{PROGRAMS, figures_dir, release_dir};
use crate::npm;
use crate::postgres;
use crate::process::{cargo, in_workspace, interrupted, run, workspace_root};
use crate::python;
use installation::Peer;

/// The programs that run on the peers, and the lock files of what they need.
const PROGRAMS_DIR: [&str; 2] = ["xtask", "peers"];

pub(crate) fn measure(is_quick: bool, is_written: bool, filter: Option<&str>) -> Result<(), String> {
    eprintln!("==> installing the peers");
    let figures = figures_dir()?;
    let installed = figures.join("peers-installed.json");
    fs::write(&installed, install_all()?.to_string())
        .map_err(|e| format!("cannot write {}: {e}", installed.display()))?;
    eprintln!("==> building the release server and the load generator");
    run(cargo()?.args(["build", "--release", "--package", "ostler-cli", "--package", "ostler-bench"]))?;
    let cluster = postgres::start_on_disk()?;

    let [ostler, load_generator, _] = PROGRAMS.map(|program| release_dir().map(|directory| directory.join(program)));
    let mut program = in_workspace(load_generator?)?;
    program.arg("--peers").arg(&installed).arg("--ostler").arg(ostler?).args(["--postgres-url", &cluster.url()]);
    // Some peers must not pass for all of them.
    if filter.is_none() {
        program.arg("--out").arg(figures.join("peers.json"));
    }
    if is_written {
        program.arg("--docs").arg(workspace_root()?.join("docs"));
    }
    if is_quick {
        program.arg("--quick");
    }
    eprintln!("==> measuring");
    run(program.args(filter))
}

/// What the load generator reads: where each peer is, or why it is missing.
fn install_all() -> Result<Value, String> {
    let programs = PROGRAMS_DIR.iter().fold(workspace_root()?, |path, part| path.join(part));
    let agents = Agents::install(&programs);
    let agent = |package, program| match &agents {
        Ok(agents) => agents.peer(package, program),
        Err(reason) => Err(reason.clone()),
    };
    let found = [
        ("stateless echo", agent("starlette", "floor.py")),
        ("agentscope-runtime", agent("agentscope-runtime", "agentscope_echo.py")),
        ("a2a-sdk", agent("a2a-sdk", "a2a_echo.py")),
        ("langgraph dev", install_langgraph(&programs.join("langgraph"))),
        ("Restate", install_restate(&programs)),
        ("nats-server JetStream", nats::find_or_install()),
    ];
    // An interrupted installation is not a missing peer.
    interrupted()?;
    Ok(Value::Object(found.into_iter().map(|(name, found)| (name.to_owned(), describe(name, found))).collect()))
}

fn describe(name: &str, found: Result<Peer, String>) -> Value {
    match found {
        Ok(peer) => json!({ "version": peer.version, "files": peer.files }),
        Err(reason) => {
            eprintln!("    {name} is missing: {reason}");
            json!({ "missing": reason.split_whitespace().collect::<Vec<_>>().join(" ") })
        }
    }
}

/// The peers that share an environment.
struct Agents {
    programs: PathBuf,
    requirements: String,
    python: PathBuf,
}

impl Agents {
    fn install(programs: &Path) -> Result<Self, String> {
        let lock = programs.join("requirements.txt");
        let python = python::find_or_install_packages("peers-python", &lock, "agentscope-runtime and a2a-sdk")?;
        Ok(Self { programs: programs.to_owned(), requirements: read(&lock)?, python })
    }

    fn peer(&self, package: &str, program: &str) -> Result<Peer, String> {
        let version = pinned(&self.requirements, package)?;
        Ok(Peer::new(version, [("python", &self.python), ("program", &self.programs.join(program))]))
    }
}

/// In an environment of its own: it needs other versions of packages that the others use too.
fn install_langgraph(directory: &Path) -> Result<Peer, String> {
    let lock = directory.join("requirements.txt");
    let python = python::find_or_install_packages("peers-langgraph", &lock, "LangGraph's development server")?;
    let version = pinned(&read(&lock)?, "langgraph-api")?;
    let (configuration, graph) = (directory.join("langgraph.json"), directory.join("graph.py"));
    Ok(Peer::new(version, [("python", &python), ("configuration", &configuration), ("graph", &graph)]))
}

fn install_restate(programs: &Path) -> Result<Peer, String> {
    let processor = npm::processor().ok_or("it is not published for this processor")?;
    let server = |directory: &Path| {
        let package =
            directory.join("node_modules").join("@restatedev").join(format!("restate-server-linux-{processor}"));
        package.join("bin").join("restate-server")
    };
    let is_good = |directory: &Path| server(directory).is_file();
    let directory = npm::find_or_install_packages("peers-node", programs, is_good, "Restate")?;
    let package: Value = serde_json::from_str(&read(&programs.join("package.json"))?).map_err(|e| e.to_string())?;
    let version = package["dependencies"]["@restatedev/restate-server"].as_str().ok_or("Restate has no version")?;
    let agents = npm::find_or_install()?;
    let files = [
        ("server", server(&directory)),
        ("node", agents.node().to_owned()),
        ("handler", programs.join("restate_echo.mjs")),
        ("packages", directory.join("node_modules")),
    ];
    Ok(Peer::new(version.to_owned(), files.each_ref().map(|(role, file)| (*role, file.as_path()))))
}

/// The version of a package in a lock file for pip.
fn pinned(requirements: &str, package: &str) -> Result<String, String> {
    let version = requirements.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix("=="));
    let version = version.and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_owned).ok_or_else(|| format!("the lock file has no {package}"))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_lock_file() {
        let lock = "# comment\na2a-sdk-more==9 \\\na2a-sdk==0.3.26 \\\n    --hash=sha256:00\n";
        assert_eq!(pinned(lock, "a2a-sdk").as_deref(), Ok("0.3.26"));
        assert!(pinned(lock, "a2a").is_err());
    }

    #[test]
    fn a_missing_peer_is_described_by_its_reason() {
        assert_eq!(describe("a", Err("no\n network".into())), json!({ "missing": "no network" }));
        let peer = Peer::new("1".into(), [("server", Path::new("/s"))]);
        assert_eq!(describe("a", Ok(peer)), json!({ "version": "1", "files": { "server": "/s" } }));
    }
}
