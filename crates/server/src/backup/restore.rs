//! `ostler restore`. The whole backup is checked before anything is written. A marker in the data directory shows that it is not
//! complete, until everything is written, durable and verified.

use std::{
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

use ostler_protocol::{Failure, Rule};
use ostler_store::{Db, StoreConfig, backup::Loader};
use serde::Serialize;
use tokio::runtime::Handle;

use super::{
    BackupProgress, BackupStep, Unlock,
    extract::Extracted,
    format::{BackupContents, BackupManifest, FILES, SCHEMA, STORE, Schema, damaged},
    places::BackupPlaces,
    read_archive::{self, ArchiveEntry, Checked, EntryKind, EntryVisitor, has_magic, json, text},
    write_archive::failed,
};
use crate::{
    clock::{Clock, SystemClock},
    config::Config,
    dialect::{Dialects, Holding},
    directories, restore_marker,
    secrets::SecretStore,
    startup::not_started,
    verify::{self, Report},
};

pub struct RestoreOptions {
    pub file: PathBuf,
    /// Opens an encrypted backup.
    pub unlock: Option<Unlock>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub is_encrypted: bool,
    pub manifest: BackupManifest,
    pub contents: BackupContents,
}

#[derive(Clone, Debug)]
pub struct RestoreReport {
    pub data_dir: PathBuf,
    /// The store was restored to Postgres.
    pub is_postgres: bool,
    pub check: CheckReport,
    /// The hash chains of the restored store.
    pub verified: Report,
    /// Secrets that the configured key does not open.
    pub sealed_secrets: Vec<String>,
}

/// Whether a backup needs a passphrase or an identity.
pub fn is_encrypted(file: &Path) -> Result<bool, Failure> {
    has_magic(&mut open(file)?).map_err(|error| failed(file, error))
}

/// Checks a backup and writes nothing.
pub async fn check(options: RestoreOptions, mut progress: Box<dyn BackupProgress>) -> Result<CheckReport, Failure> {
    let work = move || check_file(&mut open(&options.file)?, None, &options, &mut *progress);
    tokio::task::spawn_blocking(work).await.map_err(Failure::internal)?
}

/// Fills the data directory and the store of this configuration, which must be empty.
pub async fn restore(
    config: Config,
    dialects: &Dialects,
    options: RestoreOptions,
    mut progress: Box<dyn BackupProgress>,
) -> Result<RestoreReport, Failure> {
    let holdings: Vec<&'static Holding> = dialects.holdings().collect();
    let (handle, own) = (Handle::current(), config.clone());
    let work = move || write(&own, &holdings, &options, &mut *progress, &handle).map(|check| (check, progress));
    let (check, mut progress) = tokio::task::spawn_blocking(work).await.map_err(Failure::internal)??;
    progress.progress(BackupStep::Verify, 0, 1);
    let (data_dir, store) = (config.data_dir()?, config.store()?);
    let db = Db::open(&store, SystemClock.now()).await.map_err(|error| not_started(Rule::Store, error))?;
    let verified = verify::verify_store(&db, None).await;
    db.close().await;
    let (verified, sealed_secrets) = (verified?, find_sealed(&config).await?);
    progress.progress(BackupStep::Verify, 1, 1);
    restore_marker::remove(&data_dir).map_err(|error| failed(&data_dir, error))?;
    let is_postgres = config.store.database_url.is_some();
    Ok(RestoreReport { data_dir, is_postgres, check, verified, sealed_secrets })
}

fn open(file: &Path) -> Result<File, Failure> {
    let opened = File::open(file).map_err(|error| failed(file, error))?;
    let is_file = opened.metadata().is_ok_and(|metadata| metadata.is_file());
    // It is read twice.
    if is_file { Ok(opened) } else { Err(failed(file, "not a file")) }
}

/// Checks the whole backup, and with `all` that everything in it has a place on this server.
fn check_file(
    file: &mut File,
    all: Option<&BackupPlaces>,
    options: &RestoreOptions,
    progress: &mut dyn BackupProgress,
) -> Result<CheckReport, Failure> {
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let is_encrypted = has_magic(file).map_err(|error| failed(&options.file, error))?;
    let mut checking = Checking { progress, total, all };
    let Checked { manifest, contents } = read_archive::read(file, options.unlock.as_ref(), &mut checking)?;
    Ok(CheckReport { is_encrypted, manifest, contents })
}

struct Checking<'a> {
    progress: &'a mut dyn BackupProgress,
    total: u64,
    all: Option<&'a BackupPlaces>,
}

impl EntryVisitor for Checking<'_> {
    fn manifest(&mut self, _: &BackupManifest) -> Result<(), Failure> {
        Ok(())
    }

    fn entry(&mut self, entry: &ArchiveEntry, _: &mut dyn Read) -> Result<(), Failure> {
        let part = Part::of(&entry.path)?;
        self.all.map_or(Ok(()), |all| check_place(all, &part, entry))
    }

    fn position(&mut self, position: u64) {
        self.progress.progress(BackupStep::Check, position, self.total);
    }
}

/// What an entry is part of.
enum Part<'a> {
    Schema,
    Rows(&'a str),
    File(&'a str, &'a Path),
}

impl<'a> Part<'a> {
    fn of(path: &'a Path) -> Result<Self, Failure> {
        let mut parts = path.components();
        let mut next = || match parts.next() {
            Some(Component::Normal(part)) => part.to_str(),
            _ => None,
        };
        let found = match (next(), next()) {
            _ if path == Path::new(SCHEMA) => Some(Self::Schema),
            (Some(STORE), Some(table)) if path.components().count() == 3 => Some(Self::Rows(table)),
            (Some(FILES), Some(name)) => Some(Self::File(name, parts.as_path())),
            _ => None,
        };
        found.ok_or_else(|| damaged(format!("{} is no part of a backup", path.display())))
    }
}

fn write(
    config: &Config,
    holdings: &[&'static Holding],
    options: &RestoreOptions,
    progress: &mut dyn BackupProgress,
    handle: &Handle,
) -> Result<CheckReport, Failure> {
    let (data_dir, store) = (config.data_dir()?, config.store()?);
    let all = BackupPlaces::of(config, holdings)?;
    check_empty(&data_dir, &all, &store, handle)?;
    let mut file = open(&options.file)?;
    let report = check_file(&mut file, Some(&all), options, progress)?;
    directories::make(&data_dir).map_err(|failure| not_started(Rule::DataDir, failure.cause.unwrap_or_default()))?;
    restore_marker::set(&data_dir).map_err(|error| failed(&data_dir, error))?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let (extracted, loader) = (Extracted::default(), None);
    let mut writing = Writing { progress, total, all: &all, store: &store, handle, extracted, loader };
    read_archive::read(&mut file, options.unlock.as_ref(), &mut writing)?;
    let Writing { extracted, loader, .. } = writing;
    let loader = loader.ok_or_else(|| damaged("it has no store"))?;
    loader.finish().map_err(|error| not_started(Rule::Store, error))?;
    extracted.finish()?;
    Ok(report)
}

/// The data directory and the store must be empty, and so must the directories that the configuration keeps elsewhere.
fn check_empty(data_dir: &Path, all: &BackupPlaces, store: &StoreConfig, handle: &Handle) -> Result<(), Failure> {
    restore_marker::check(data_dir)?;
    let occupied = |path: &Path| {
        let message = format!("{} is not empty", path.display());
        Err(Failure::rule(Rule::RestoreTarget, message))
    };
    let places = all.places.iter().map(|place| place.path.as_path());
    for path in [data_dir].into_iter().chain(places) {
        let is_empty = match std::fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            // A file.
            Err(_) => false,
        };
        if !is_empty {
            return occupied(path);
        }
    }
    match Loader::is_empty(store, handle).map_err(|error| not_started(Rule::Store, error))? {
        true => Ok(()),
        false => Err(Failure::rule(Rule::RestoreTarget, "the database is not empty: it has tables")),
    }
}

/// An entry of the backup must have a place on this server.
fn check_place(all: &BackupPlaces, part: &Part, entry: &ArchiveEntry) -> Result<(), Failure> {
    match part {
        Part::File(name, _) => {
            if let Some((_, what)) = all.elsewhere.iter().find(|(elsewhere, _)| elsewhere == name) {
                let message = format!("the backup has {name}, and this configuration keeps it elsewhere: {what}");
                return Err(Failure::rule(Rule::BackupPlaces, message));
            }
            all.get(name).map(drop)
        }
        _ if !matches!(entry.kind, EntryKind::File) => Err(damaged("a part of the store is not a file")),
        Part::Rows(table) if !all.tables.contains(table) => {
            Err(damaged(format!("this build knows no table {table}; use a newer build")))
        }
        Part::Rows(_) | Part::Schema => Ok(()),
    }
}

struct Writing<'a> {
    progress: &'a mut dyn BackupProgress,
    total: u64,
    all: &'a BackupPlaces,
    store: &'a StoreConfig,
    handle: &'a Handle,
    extracted: Extracted,
    loader: Option<Loader>,
}

impl EntryVisitor for Writing<'_> {
    fn manifest(&mut self, _: &BackupManifest) -> Result<(), Failure> {
        Ok(())
    }

    fn entry(&mut self, entry: &ArchiveEntry, contents: &mut dyn Read) -> Result<(), Failure> {
        let broken = |error| not_started(Rule::Store, error);
        let part = Part::of(&entry.path)?;
        // Again, because the file may have changed since it was checked.
        check_place(self.all, &part, entry)?;
        match part {
            Part::File(name, below) => self.extracted.write(self.all, (name, below), entry, contents),
            Part::Schema => {
                let Schema { engine, migrations } = json(contents)?;
                let loader = Loader::create(self.store, &engine, &migrations, self.handle).map_err(broken)?;
                self.loader = Some(loader);
                Ok(())
            }
            Part::Rows(table) => {
                let loader = self.loader.as_mut().ok_or_else(|| damaged("its rows have no schema"))?;
                loader.load(table, &text(contents)?).map_err(broken)?;
                Ok(())
            }
        }
    }

    fn position(&mut self, position: u64) {
        self.progress.progress(BackupStep::Restore, position, self.total);
    }
}

/// The secrets that the configured key does not open. Without a key none is tried: opening the store would make a new one.
async fn find_sealed(config: &Config) -> Result<Vec<String>, Failure> {
    let directory = config.secrets.directory.clone().unwrap_or(config.data_dir()?.join("secrets"));
    if !directory.exists() || !SecretStore::has_key(config)? {
        return Ok(vec![]);
    }
    let secrets = SecretStore::open_files(config)?;
    let mut sealed = vec![];
    for name in secrets.list().await? {
        if secrets.get(&name).await.is_err() {
            sealed.push(name);
        }
    }
    Ok(sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::places::BackupPlace;

    /// The rule that rejects an entry in the first pass, which writes nothing.
    fn rejected_by(path: &str, kind: EntryKind) -> Option<String> {
        let token =
            BackupPlace { name: "token", path: "/nowhere/token".into(), is_backends: false, is_workspaces: false };
        let elsewhere = vec![("secrets-key", "secrets.key".to_owned())];
        let all = BackupPlaces { places: vec![token], elsewhere, tables: vec!["runs"], left_out: vec!["git"] };
        let mut checking = Checking { progress: &mut (), total: 0, all: Some(&all) };
        let entry = ArchiveEntry { path: path.into(), kind, mode: 0o600, modified: 0 };
        let failure = checking.entry(&entry, &mut std::io::empty()).err()?;
        failure.rule_name().map(str::to_owned)
    }

    #[test]
    fn an_entry_without_a_place_is_found_before_anything_is_written() {
        for good in ["files/token", "store/runs/1", SCHEMA] {
            assert_eq!(rejected_by(good, EntryKind::File), None, "{good}");
        }
        for unknown in ["files/unknown/x", "files/git/x", "store/unknown/1", "other/x"] {
            assert_eq!(rejected_by(unknown, EntryKind::File).as_deref(), Some("backup-damaged"), "{unknown}");
        }
        assert_eq!(rejected_by("store/runs/1", EntryKind::Directory).as_deref(), Some("backup-damaged"));
        assert_eq!(rejected_by("files/secrets-key", EntryKind::File).as_deref(), Some("backup-places"));
    }
}
