//! The licences of everything in the program: a list, and the texts that the crates publish.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::inventory::{Inventory, Part};
use super::put;

/// How files with the terms of a crate begin, in lower case.
const TERMS: [&str; 6] = ["licen", "copying", "copyright", "notice", "unlicense", "authors"];

pub(crate) fn write(contents: &Path, inventory: &Inventory) -> Result<(), String> {
    put(contents, "licenses/LIST.md", |path| fs::write(path, list(inventory)))?;
    for part in inventory.parts.iter().filter(|part| part.checksum.is_some()) {
        copy_terms(contents, part)?;
    }
    Ok(())
}

fn list(inventory: &Inventory) -> String {
    let mut list = String::from(
        "# Licences\n\nThe crates that are compiled into this program. The texts that they publish are in the folders beside this\n\
         file; a crate without a folder publishes none.\n\n| crate | version | licence | source |\n|---|---|---|---|\n",
    );
    for part in inventory.parts.iter().filter(|part| part.checksum.is_some()) {
        let Part { name, version, licence, repository, .. } = part;
        let _ = writeln!(list, "| {name} | {version} | {licence} | {repository} |");
    }
    list
}

fn copy_terms(contents: &Path, part: &Part) -> Result<(), String> {
    let entries = fs::read_dir(&part.folder).map_err(|e| format!("cannot read {}: {e}", part.folder.display()))?;
    for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if TERMS.iter().any(|beginning| name.to_lowercase().starts_with(beginning)) {
            let to = format!("licenses/{}-{}/{name}", part.name, part.version);
            put(contents, &to, |path| fs::copy(entry.path(), path).map(drop))?;
        }
    }
    Ok(())
}
