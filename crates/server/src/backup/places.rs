//! Where each part of a backup is on this server, by the declarations of the engine and the dialects.

use std::path::{Path, PathBuf};

use ostler_protocol::Failure;
use ostler_store::backup::LEDGER_TABLE;

use super::format::damaged;
use crate::{
    config::Config,
    dialect::{Backup, ConfiguredPlace, Holding, Location},
};

/// A file or directory that belongs to a backup.
#[derive(Clone, Debug)]
pub(super) struct BackupPlace {
    /// Its name in the data directory, independent of the configuration.
    pub name: &'static str,
    pub path: PathBuf,
    /// Backends write there.
    pub is_backends: bool,
    pub is_workspaces: bool,
}

pub(super) struct BackupPlaces {
    pub places: Vec<BackupPlace>,
    /// Parts that the configuration keeps where they are not copied from, each with its name.
    pub elsewhere: Vec<(&'static str, String)>,
    /// The tables that are copied.
    pub tables: Vec<&'static str>,
    /// Names in the data directory that are not copied and need not be.
    pub left_out: Vec<&'static str>,
}

impl BackupPlaces {
    pub(super) fn of(config: &Config, holdings: &[&'static Holding]) -> Result<Self, Failure> {
        let data_dir = config.data_dir()?;
        let mut all = Self { places: vec![], elsewhere: vec![], tables: vec![], left_out: vec![] };
        for holding in holdings {
            match holding.location {
                Location::Table(name) => {
                    if holding.backup != Backup::LeftOut && name != LEDGER_TABLE {
                        all.tables.push(name);
                    }
                }
                Location::Path(name) => match (holding.backup, (holding.place)(config)) {
                    (Backup::LeftOut | Backup::ByTables, _) => all.left_out.push(name),
                    (_, ConfiguredPlace::Elsewhere(what)) => all.elsewhere.push((name, what)),
                    (backup, place) => all.places.push(BackupPlace {
                        name,
                        path: match place {
                            ConfiguredPlace::At(path) => std::path::absolute(&path).unwrap_or(path),
                            _ => data_dir.join(name),
                        },
                        is_backends: matches!(backup, Backup::BackendFiles | Backup::Workspaces),
                        is_workspaces: backup == Backup::Workspaces,
                    }),
                },
            }
        }
        Ok(all)
    }

    pub(super) fn find(&self, name: &str) -> Option<&BackupPlace> {
        self.places.iter().find(|place| place.name == name)
    }

    /// The place of a part of a backup.
    pub(super) fn get(&self, name: &str) -> Result<&BackupPlace, Failure> {
        self.find(name).ok_or_else(|| damaged(format!("this build knows no {name}; use a newer build")))
    }

    /// Files in the data directory that no declaration mentions, for example those of the operator.
    pub(super) fn undeclared(&self, data_dir: &Path) -> Vec<String> {
        let is_ours = |name: &str| {
            // SQLite's own files belong to the store.
            self.find(name).is_some()
                || self.left_out.contains(&name)
                || name.starts_with("ostler.db-")
                || name.ends_with(".lock")
        };
        let entries = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !is_ours(name))
            .collect();
        names.sort();
        names
    }
}
