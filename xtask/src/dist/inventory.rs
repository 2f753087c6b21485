//! The crates that are compiled into the program, from `cargo metadata` and the lock file. Dependencies of tests and of other
//! programs of this workspace are not among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::build::{Program, host, output};
use crate::process::{cargo, workspace_root};

const PROGRAM: &str = "ostler-cli";

pub(crate) struct Inventory {
    pub version: String,
    pub commit: String,
    /// The crate of the program itself.
    pub root: Part,
    /// Every other crate, by name and version.
    pub parts: Vec<Part>,
}

pub(crate) struct Part {
    pub name: String,
    pub version: String,
    /// An SPDX expression; empty if the crate does not name one.
    pub licence: String,
    pub repository: String,
    pub folder: PathBuf,
    /// SHA-256 of the published package, in hexadecimal; `None` for crates of this workspace.
    pub checksum: Option<String>,
    /// The crates that it uses, as package URLs.
    pub uses: BTreeSet<String>,
}

impl Part {
    /// Its name for tools: a package URL.
    pub(crate) fn purl(&self) -> String {
        purl(&self.name, &self.version)
    }
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

impl Inventory {
    pub(crate) fn read(program: &Program) -> Result<Self, String> {
        let mut command = cargo()?;
        command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &host()?]);
        command.args(["--manifest-path", "crates/cli/Cargo.toml", "--no-default-features"]);
        if !program.features.is_empty() {
            command.args(["--features", &program.features.join(",")]);
        }
        let metadata: Value =
            serde_json::from_str(&output(&mut command)?).map_err(|e| format!("cargo metadata: {e}"))?;
        let lock = workspace_root()?.join("Cargo.lock");
        let lock = fs::read_to_string(&lock).map_err(|e| format!("cannot read {}: {e}", lock.display()))?;
        let mut parts = parts(&metadata, &checksums(&lock)).ok_or("cargo metadata has another form than expected")?;
        let root = parts.remove(PROGRAM).and_then(|mut versions| versions.pop());
        let root = root.ok_or("cargo metadata does not name the program")?;
        let parts = parts.into_values().flatten().collect();
        Ok(Self { version: program.version.clone(), commit: program.commit.clone(), root, parts })
    }
}

/// The crates that the program reaches, by name.
fn parts(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<BTreeMap<String, Vec<Part>>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let packages = metadata["packages"].as_array()?;
    let packages: BTreeMap<&str, &Value> = packages.iter().filter_map(|p| Some((p["id"].as_str()?, p))).collect();
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let nodes: BTreeMap<&str, &Value> = nodes.iter().filter_map(|n| Some((n["id"].as_str()?, n))).collect();
    let is_program = |(_, package): &(&&str, &&Value)| package["name"] == PROGRAM;
    let mut left = vec![*packages.iter().find(is_program)?.0];
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::<String, Vec<Part>>::new());
    while let Some(id) = left.pop() {
        if !seen.insert(id) {
            continue;
        }
        let package = packages.get(id)?;
        let used: Vec<&str> = nodes.get(id)?["deps"].as_array()?.iter().filter_map(used_id).collect();
        let (name, version) = (text(&package["name"])?, text(&package["version"])?);
        let uses = used.iter().filter_map(|id| packages.get(id));
        let uses = uses.filter_map(|p| Some(purl(p["name"].as_str()?, p["version"].as_str()?))).collect();
        let folder = PathBuf::from(package["manifest_path"].as_str()?).parent()?.to_owned();
        let part = Part {
            licence: text(&package["license"]).unwrap_or_default(),
            repository: text(&package["repository"]).unwrap_or_default(),
            checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
            name: name.clone(),
            version,
            folder,
            uses,
        };
        found.entry(name).or_default().push(part);
        left.extend(used);
    }
    found.values_mut().for_each(|versions| versions.sort_by(|a, b| a.version.cmp(&b.version)));
    Some(found)
}

/// The package of a dependency that ends up in the program, or is run to build it.
fn used_id(dependency: &Value) -> Option<&str> {
    let kinds = dependency["dep_kinds"].as_array()?;
    kinds.iter().any(|kind| kind["kind"] != "dev").then(|| dependency["pkg"].as_str()).flatten()
}

/// The checksums of the lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        let prefix = format!("{name} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let of_block = |block| Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?));
    lock.split("[[package]]").filter_map(of_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_belong_to_a_name_and_a_version() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"ff\"\n";
        let found = checksums(lock);
        assert_eq!(found.len(), 1);
        assert_eq!(found[&("a".to_owned(), "2.0.0".to_owned())], "ff");
    }
}
