//! `ostler backup`. Files are copied before the moment of the store's rows, and those that changed once more after it: so a file
//! that a row refers to is in the backup even if it is created or deleted during the backup.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use ostler_protocol::{Failure, Rule, Timestamp};
use ostler_store::{StoreConfig, StoreError, backup::Snapshot};
use serde::Serialize;
use tokio::runtime::Handle;

use super::{
    BackupProgress, BackupStep, Lock,
    format::{BackupContents, BackupManifest, CONTENTS, FILES, FORMAT, MANIFEST, SCHEMA, STORE, Schema},
    places::{BackupPlace, BackupPlaces},
    walk::{Fingerprint, Walked, fingerprint, walk},
    write_archive::{ArchiveWriter, directory_of, failed},
};
use crate::{
    clock::{Clock, SystemClock},
    config::Config,
    dialect::{Dialects, Holding},
    restore_marker,
};

pub struct BackupOptions {
    pub file: PathBuf,
    /// Encrypts the backup.
    pub lock: Option<Lock>,
    pub with_workspaces: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupReport {
    pub file: String,
    pub bytes: u64,
    pub is_encrypted: bool,
    pub manifest: BackupManifest,
    pub contents: BackupContents,
}

/// Writes a backup of the server with this configuration, which may be running.
pub async fn back_up(
    config: Config,
    dialects: &Dialects,
    options: BackupOptions,
    progress: Box<dyn BackupProgress>,
) -> Result<BackupReport, Failure> {
    let holdings: Vec<&'static Holding> = dialects.holdings().collect();
    let handle = Handle::current();
    let work = move || create(&config, &holdings, &options, progress, &handle);
    tokio::task::spawn_blocking(work).await.map_err(Failure::internal)?
}

fn create(
    config: &Config,
    holdings: &[&'static Holding],
    options: &BackupOptions,
    progress: Box<dyn BackupProgress>,
    handle: &Handle,
) -> Result<BackupReport, Failure> {
    let data_dir = config.data_dir()?;
    restore_marker::check(&data_dir)?;
    let store = config.store()?;
    if let StoreConfig::Sqlite { file, .. } = &store
        && !file.exists()
    {
        return Err(Failure::rule(Rule::StoreAbsent, format!("there is no store at {}", file.display())));
    }
    let mut all = BackupPlaces::of(config, holdings)?;
    check_target(&options.file, &data_dir, &all)?;
    let mut absent: Vec<_> = all.elsewhere.iter().map(|(_, what)| what.clone()).collect();
    absent.extend(all.undeclared(&data_dir).into_iter().map(|name| format!("{name} in the data directory")));
    if !options.with_workspaces {
        absent.push("workspaces (--no-workspaces)".into());
        all.places.retain(|place| !place.is_workspaces);
    }
    let engine = if matches!(store, StoreConfig::Sqlite { .. }) { "sqlite" } else { "postgres" };
    let manifest = BackupManifest {
        format: FORMAT,
        ostler: env!("CARGO_PKG_VERSION").into(),
        created_at: Timestamp::from_second(SystemClock.wall().as_second()).unwrap_or(Timestamp::UNIX_EPOCH),
        engine: engine.into(),
        has_workspaces: options.with_workspaces,
        absent,
    };
    let writer = ArchiveWriter::create(&options.file, options.lock.as_ref())?;
    let mut copying = Copying { writer, seen: HashMap::new(), contents: BackupContents::default(), progress };
    let written = copying.write(&manifest, &all, &store, handle).map_err(|error| match error {
        // The backup could not be written while its rows were read.
        CopyError::Store(StoreError::Io(error)) => failed(&options.file, error),
        CopyError::Store(error) => crate::startup::not_started(Rule::Store, error),
        CopyError::File(path, error) => failed(&path, error),
    });
    if let Err(failure) = written {
        copying.writer.abandon();
        return Err(failure);
    }
    let bytes = copying.writer.finish()?;
    let (file, is_encrypted) = (options.file.display().to_string(), options.lock.is_some());
    Ok(BackupReport { file, bytes, is_encrypted, manifest, contents: copying.contents })
}

/// A backup that is a file of the data directory would be lost with it, and one in a copied part would contain itself.
fn check_target(file: &Path, data_dir: &Path, all: &BackupPlaces) -> Result<(), Failure> {
    if file.file_name().is_none() {
        return Err(Failure::rule(Rule::BackupTarget, format!("{} is not the name of a file", file.display())));
    }
    let directory = directory_of(file).canonicalize().map_err(|error| failed(directory_of(file), error))?;
    let is_inside = |place: &Path| place.canonicalize().is_ok_and(|place| directory.starts_with(place));
    if is_inside(data_dir) || all.places.iter().any(|place| is_inside(&place.path)) {
        let message = format!("{} is inside of what it would be a backup of", file.display());
        return Err(Failure::rule(Rule::BackupTarget, message));
    }
    Ok(())
}

enum CopyError {
    Store(StoreError),
    File(PathBuf, io::Error),
}

impl From<StoreError> for CopyError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

struct Copying {
    writer: ArchiveWriter,
    /// The files in the backup, as they were when they were copied.
    seen: HashMap<PathBuf, Fingerprint>,
    contents: BackupContents,
    progress: Box<dyn BackupProgress>,
}

impl Copying {
    fn write(
        &mut self,
        manifest: &BackupManifest,
        all: &BackupPlaces,
        store: &StoreConfig,
        handle: &Handle,
    ) -> Result<(), CopyError> {
        self.json(MANIFEST, manifest)?;
        self.files(all, BackupStep::Files)?;
        self.store(all, store, handle)?;
        self.files(all, BackupStep::ChangedFiles)?;
        let contents = self.contents.clone();
        self.json(CONTENTS, &contents)
    }

    fn json(&mut self, path: &str, value: &impl Serialize) -> Result<(), CopyError> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| CopyError::File(path.into(), error.into()))?;
        self.writer.bytes(path, &text).map_err(|error| CopyError::File(path.into(), error))
    }

    fn files(&mut self, all: &BackupPlaces, step: BackupStep) -> Result<(), CopyError> {
        let mut total = 0;
        for place in &all.places {
            let sized = walk(&place.path, &mut |_, found| {
                if let Walked::File(file) = found {
                    total += file.metadata()?.len();
                }
                Ok(())
            });
            sized.map_err(|error| CopyError::File(place.path.clone(), error))?;
        }
        let mut done = 0;
        self.contents.unreadable.clear();
        for place in &all.places {
            let copied = walk(&place.path, &mut |below, found| {
                let size = self.file(place, below, found)?;
                done += size;
                self.progress.progress(step, done, total);
                Ok(())
            });
            copied.map_err(|error| CopyError::File(place.path.clone(), error))?;
        }
        Ok(())
    }

    fn file(&mut self, place: &BackupPlace, below: &Path, found: Walked) -> io::Result<u64> {
        let mut path = Path::new(FILES).join(place.name);
        if !below.as_os_str().is_empty() {
            path.push(below);
        }
        let is_new = !self.seen.contains_key(&path);
        match found {
            Walked::Directory { mode } => {
                let now = (0, 0, 0, 0, mode);
                if self.seen.insert(path.clone(), now) != Some(now) {
                    self.writer.directory(&path, mode)?;
                }
                // A part without files is in the backup, too.
                self.contents.files.entry(place.name.to_owned()).or_default();
                Ok(0)
            }
            Walked::Link(target) => {
                // Links are never changed, only replaced: by their target it is known whether they were.
                let now = (u64::MAX, 0, 0, 0, link_fingerprint(&target));
                if self.seen.insert(path.clone(), now) != Some(now) {
                    self.writer.link(&path, &target)?;
                    self.count(place, is_new);
                }
                Ok(0)
            }
            Walked::File(file) => {
                let now = fingerprint(&file.metadata()?);
                if self.seen.insert(path.clone(), now) == Some(now) {
                    return Ok(now.1);
                }
                let size = self.writer.file(&path, &file)?;
                self.count(place, is_new);
                self.contents.file_bytes += size;
                Ok(size)
            }
            Walked::Unreadable(error) if place.is_backends => {
                self.contents.unreadable.push(format!("{}: {error}", place.path.join(below).display()));
                Ok(0)
            }
            Walked::Unreadable(error) => {
                Err(io::Error::new(error.kind(), format!("{}: {error}", place.path.join(below).display())))
            }
        }
    }

    fn count(&mut self, place: &BackupPlace, is_new: bool) {
        if is_new {
            *self.contents.files.entry(place.name.to_owned()).or_default() += 1;
        }
    }

    fn store(&mut self, all: &BackupPlaces, store: &StoreConfig, handle: &Handle) -> Result<(), CopyError> {
        let mut snapshot = Snapshot::open(store, handle)?;
        let (engine, migrations) = (snapshot.engine_name().to_owned(), snapshot.migrations().to_vec());
        self.json(SCHEMA, &Schema { engine, migrations })?;
        let existing = snapshot.tables()?;
        let tables: Vec<_> = all.tables.iter().filter(|table| existing.iter().any(|name| name == *table)).collect();
        let mut total = 0;
        for table in &tables {
            total += snapshot.estimate(table)?;
        }
        let mut done = 0;
        for table in tables {
            let mut number = 0;
            let (writer, progress) = (&mut self.writer, &mut self.progress);
            let rows = snapshot.read_table(table, &mut |part| {
                number += 1;
                let rows = part.iter().filter(|byte| **byte == b'\n').count() as u64 - 1;
                done += rows;
                progress.progress(BackupStep::Store, done, total.max(done));
                writer.bytes(&format!("{STORE}/{table}/{number:08}"), part)
            })?;
            self.contents.rows.insert((*table).to_owned(), rows);
        }
        Ok(())
    }
}

/// Tells targets of links apart.
fn link_fingerprint(target: &Path) -> u32 {
    use std::os::unix::ffi::OsStrExt;
    let digest = ostler_crypto::sha256(target.as_os_str().as_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}
