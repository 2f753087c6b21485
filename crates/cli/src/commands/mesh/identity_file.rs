//! The names that joined on this machine, each with its keys in one file that only its owner can read. Several commands may
//! use a name at once, so each change is applied to the current content of the file, under a lock.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use ostler_client::mesh::{Ambient, GatewayClient, Sealer, StoredIdentity};
use ostler_protocol::{Failure, FailureKind, Rule, mesh::Aid};
use ostler_server::clock::fill;
use rustix::fs::{FlockOperation, flock};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    connection::Connection,
    errors,
    terminal::{output, times::now},
};

pub(crate) const AMBIENT: Ambient = Ambient { now, fill };

#[derive(clap::Args, Debug)]
pub(crate) struct IdentityArgs {
    /// The name to use, in full or without its domain [default: the only one that joined on this machine]
    #[arg(long = "as", value_name = "NAME")]
    own: Option<String>,
}

impl IdentityArgs {
    pub(crate) fn find(&self, connection: &Connection) -> Result<IdentityFile, Failure> {
        IdentityFile::find(connection, self.own.as_deref())
    }
}

/// A unique slot, for commands that neither read messages nor publish prekeys: any number of them may run at once.
pub(crate) fn single_use_slot() -> String {
    format!("once-{}", AMBIENT.id())
}

pub(crate) struct IdentityFile {
    pub stored: StoredIdentity,
    pub file: PathBuf,
    /// The server, if one was named for this call.
    server: Option<String>,
}

pub(crate) fn directory(connection: &Connection) -> Result<PathBuf, Failure> {
    let data_dir = connection.settings()?.data_dir.ok_or_else(|| {
        let message = "there is no home directory to store keys in; name a directory with --data-dir";
        Failure::rule(Rule::DataDir, message).with_kind(FailureKind::SchemaInvalid)
    })?;
    Ok(data_dir.value.join("mesh"))
}

impl IdentityFile {
    /// The named identity, in full or without its domain; without a name, the only one.
    pub(crate) fn find(connection: &Connection, requested: Option<&str>) -> Result<Self, Failure> {
        let (directory, server) = (directory(connection)?, connection.settings()?.named_server());
        let joined = list(&directory);
        let matches = |aid: &&Aid| requested.is_none_or(|name| aid.as_str() == name || aid.name() == name);
        let found: Vec<&Aid> = joined.iter().filter(matches).collect();
        let all = || joined.iter().map(Aid::as_str).collect::<Vec<_>>().join(", ");
        match (found.as_slice(), requested) {
            ([aid], _) => Self::load(&directory, aid, server),
            ([], _) if joined.is_empty() => Err(errors::hinted(
                FailureKind::NotFound,
                "no name has joined on this machine",
                "join with `ostler mesh join NAME`",
            )),
            ([], requested) => {
                let message = format!(
                    "{} has not joined on this machine; existing names: {}",
                    requested.unwrap_or_default(),
                    all()
                );
                Err(errors::hinted(FailureKind::NotFound, message, "join with `ostler mesh join NAME`"))
            }
            _ => {
                let message = format!("several names have joined on this machine: {}", all());
                Err(errors::usage(message, "choose one with `--as NAME`"))
            }
        }
    }

    /// The identity of exactly this name, if it is stored.
    pub(crate) fn get(directory: &Path, aid: &Aid, server: &str) -> Result<Option<Self>, Failure> {
        if !list(directory).contains(aid) {
            return Ok(None);
        }
        Self::load(directory, aid, Some(server.to_owned())).map(Some)
    }

    /// Stores a new identity.
    pub(crate) fn insert(directory: &Path, stored: StoredIdentity) -> Result<Self, Failure> {
        let file = file(directory, &stored.aid);
        let _lock = lock(directory)?;
        if file.exists() {
            let message = format!("another command is joining as {}", stored.aid);
            return Err(Failure::rule(Rule::MeshKeys, message).with_kind(FailureKind::StateConflict));
        }
        save(&stored, &file)?;
        Ok(Self { stored, file, server: None })
    }

    pub(crate) fn remove(self) -> Result<(), Failure> {
        std::fs::remove_file(&self.file).map_err(|error| file_failure(&self.file, &error))
    }

    /// Applies a change to the current content of the file.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut StoredIdentity)) -> Result<(), Failure> {
        let _lock = lock(self.file.parent().unwrap_or(Path::new(".")))?;
        let mut stored = read(&self.file)?;
        change(&mut stored);
        save(&stored, &self.file)?;
        self.stored = stored;
        Ok(())
    }

    pub(crate) fn gateway(&self) -> Result<GatewayClient, Failure> {
        let server = self.server.as_ref().unwrap_or(&self.stored.server);
        GatewayClient::new(server, &self.stored.root, AMBIENT)
    }

    /// Logs in and connects from a slot, and stores the certificate if it was renewed.
    pub(crate) async fn enter(&mut self, gateway: &GatewayClient, slot_id: &str) -> Result<Sealer, Failure> {
        let sealer = self.stored.enter(gateway, slot_id).await?;
        if self.stored.certificate().as_ref() != Some(sealer.certificate()) {
            self.change(|stored| stored.adopt(sealer.certificate()))?;
        }
        Ok(sealer)
    }

    /// Publishes a prekey if senders need one. Its private half is stored first.
    pub(crate) async fn publish_prekey(&mut self, sealer: &mut Sealer) -> Result<(), Failure> {
        if sealer.needs_prekey().await? {
            let own = sealer.new_prekey();
            self.change(|stored| stored.keep_prekey(&own, AMBIENT))?;
            sealer.put_prekey(&own).await?;
        }
        Ok(())
    }

    /// The full name: without a dot, a name of this identity's domain.
    pub(crate) fn full_name(&self, name: &str) -> Result<Aid, Failure> {
        full_name(name, self.stored.aid.domain())
    }

    fn load(directory: &Path, aid: &Aid, server: Option<String>) -> Result<Self, Failure> {
        let file = file(directory, aid);
        Ok(Self { stored: read(&file)?, file, server })
    }
}

pub(crate) fn full_name(name: &str, domain: &str) -> Result<Aid, Failure> {
    let full = if name.contains('.') { name.to_owned() } else { format!("{name}.{domain}") };
    full.parse().map_err(|why| Failure::invalid(Rule::Aid, format!("{full}: {why}")))
}

fn file(directory: &Path, aid: &Aid) -> PathBuf {
    directory.join(format!("{aid}.json"))
}

/// The stored names, sorted.
fn list(directory: &Path) -> Vec<Aid> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let aid = |file: std::ffi::OsString| file.to_str()?.strip_suffix(".json")?.parse().ok();
    let mut joined: Vec<Aid> = entries.filter_map(|entry| aid(entry.file_name())).collect();
    joined.sort();
    joined
}

/// Locks the directory until the file is dropped.
fn lock(directory: &Path) -> Result<File, Failure> {
    let path = directory.join(".lock");
    let open = || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    open().map_err(|error: std::io::Error| file_failure(&path, &error))
}

fn read(file: &Path) -> Result<StoredIdentity, Failure> {
    let text = std::fs::read_to_string(file).map(SecretString::from).map_err(|error| file_failure(file, &error))?;
    serde_json::from_str(text.expose_secret()).map_err(|error| {
        let message = format!("{} does not hold keys of the mesh: {error}", file.display());
        Failure::rule(Rule::MeshKeys, message)
    })
}

/// Atomically: written to another file, which is then renamed.
fn save(stored: &StoredIdentity, file: &Path) -> Result<(), Failure> {
    let text = SecretString::from(output::json(stored));
    let fresh = file.with_extension("new");
    let write = || {
        let mut written = File::options().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        written.write_all(text.expose_secret().as_bytes())?;
        written.sync_all()?;
        std::fs::rename(&fresh, file)?;
        file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    write().map_err(|error: std::io::Error| file_failure(file, &error))
}

fn file_failure(path: &Path, error: &std::io::Error) -> Failure {
    let kind = if error.kind() == ErrorKind::NotFound { FailureKind::NotFound } else { FailureKind::InfraFailed };
    let hint = "check the file and its permissions; `--data-dir` names another directory";
    let failure = Failure::rule(Rule::MeshKeys, format!("{}: {error}", path.display())).with_kind(kind);
    errors::with_hint(failure, hint)
}
