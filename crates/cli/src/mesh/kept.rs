//! The names that were joined here, each with its keys in one file that nobody else may read. Several commands may use a name
//! at once, so a change is made to what the file says at that time, under a lock.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use ostler_client::mesh::{Gateway, Sealer, StoredIdentity};
use ostler_protocol::{Failure, FailureKind, mesh::Aid};
use rustix::fs::{FlockOperation, flock};
use secrecy::{ExposeSecret, SecretString};

use super::AMBIENT;
use crate::{connect::Connection, errors, output};

pub struct Kept {
    pub member: StoredIdentity,
    pub file: PathBuf,
    /// Where its gateway is, if that was said for this time.
    server: Option<String>,
}

pub fn directory(connection: &Connection) -> Result<PathBuf, Failure> {
    let data_dir = connection.settings()?.data_dir.ok_or_else(|| {
        Failure::invalid("data-dir", "there is no home to keep keys in; name a directory with --data-dir")
    })?;
    Ok(data_dir.value.join("mesh"))
}

impl Kept {
    /// The one that is asked for, in full or without its domain; or else the only one.
    pub fn find(connection: &Connection, asked: Option<&str>) -> Result<Self, Failure> {
        let (directory, server) = (directory(connection)?, connection.settings()?.named_server());
        let joined = list(&directory);
        let is_asked = |aid: &&Aid| asked.is_none_or(|asked| aid.as_str() == asked || aid.name() == asked);
        let found: Vec<&Aid> = joined.iter().filter(is_asked).collect();
        let all = || joined.iter().map(Aid::as_str).collect::<Vec<_>>().join(", ");
        match (found.as_slice(), asked) {
            ([aid], _) => Self::load(&directory, aid, server),
            ([], _) if joined.is_empty() => Err(errors::hinted(
                FailureKind::NotFound,
                "nobody has joined here",
                "join with `ostler mesh join NAME`",
            )),
            ([], asked) => {
                let message = format!("{} has not joined here; joined are: {}", asked.unwrap_or_default(), all());
                Err(errors::hinted(FailureKind::NotFound, message, "join with `ostler mesh join NAME`"))
            }
            _ => {
                let message = format!("several names were joined here: {}", all());
                Err(errors::usage(message, "choose one with `--as`, in full"))
            }
        }
    }

    /// The one of this very name, if it is here.
    pub fn get(directory: &Path, aid: &Aid, server: &str) -> Result<Option<Self>, Failure> {
        if !list(directory).contains(aid) {
            return Ok(None);
        }
        Self::load(directory, aid, Some(server.to_owned())).map(Some)
    }

    /// Keeps a new one.
    pub fn insert(directory: &Path, member: StoredIdentity) -> Result<Self, Failure> {
        let file = file(directory, &member.aid);
        let _lock = lock(directory)?;
        if file.exists() {
            let message = format!("{} is being joined by somebody else", member.aid);
            return Err(Failure::rule(FailureKind::StateConflict, "mesh-keys", message));
        }
        save(&member, &file)?;
        Ok(Self { member, file, server: None })
    }

    pub fn remove(self) -> Result<(), Failure> {
        std::fs::remove_file(&self.file).map_err(|error| not_kept(&self.file, &error))
    }

    /// Changes what is kept, whatever others have made of it meanwhile.
    pub fn change(&mut self, change: impl FnOnce(&mut StoredIdentity)) -> Result<(), Failure> {
        let _lock = lock(self.file.parent().unwrap_or(Path::new(".")))?;
        let mut member = read(&self.file)?;
        change(&mut member);
        save(&member, &self.file)?;
        self.member = member;
        Ok(())
    }

    pub fn gateway(&self) -> Result<Gateway, Failure> {
        let server = self.server.as_ref().unwrap_or(&self.member.server);
        Gateway::new(server, &self.member.root, AMBIENT)
    }

    /// Logs in and connects from a slot, and keeps the certificate if that brought a new one.
    pub async fn enter(&mut self, gateway: &Gateway, slot_id: &str) -> Result<Sealer, Failure> {
        let sealer = self.member.enter(gateway, slot_id).await?;
        if self.member.certificate().as_ref() != Some(sealer.certificate()) {
            self.change(|kept| kept.adopt(sealer.certificate()))?;
        }
        Ok(sealer)
    }

    /// Leaves a prekey if senders need one. Its private half is kept first.
    pub async fn leave_prekey(&mut self, sealer: &mut Sealer) -> Result<(), Failure> {
        if sealer.needs_prekey().await? {
            let own = sealer.new_prekey();
            self.change(|kept| kept.keep_prekey(&own, AMBIENT))?;
            sealer.put_prekey(&own).await?;
        }
        Ok(())
    }

    /// A name in full: without a dot, one of the own domain.
    pub fn full_name(&self, name: &str) -> Result<Aid, Failure> {
        full_name(name, self.member.aid.domain())
    }

    fn load(directory: &Path, aid: &Aid, server: Option<String>) -> Result<Self, Failure> {
        let file = file(directory, aid);
        Ok(Self { member: read(&file)?, file, server })
    }
}

pub fn full_name(name: &str, domain: &str) -> Result<Aid, Failure> {
    let full = if name.contains('.') { name.to_owned() } else { format!("{name}.{domain}") };
    full.parse().map_err(|why| Failure::invalid("aid", format!("{full}: {why}")))
}

fn file(directory: &Path, aid: &Aid) -> PathBuf {
    directory.join(format!("{aid}.json"))
}

/// The names that were joined here, sorted.
fn list(directory: &Path) -> Vec<Aid> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let aid = |file: std::ffi::OsString| file.to_str()?.strip_suffix(".json")?.parse().ok();
    let mut joined: Vec<Aid> = entries.filter_map(|entry| aid(entry.file_name())).collect();
    joined.sort();
    joined
}

/// Held until it is dropped.
fn lock(directory: &Path) -> Result<File, Failure> {
    let path = directory.join(".lock");
    let open = || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    open().map_err(|error: std::io::Error| not_kept(&path, &error))
}

fn read(file: &Path) -> Result<StoredIdentity, Failure> {
    let text = std::fs::read_to_string(file).map(SecretString::from).map_err(|error| not_kept(file, &error))?;
    serde_json::from_str(text.expose_secret()).map_err(|error| {
        let message = format!("{} does not hold keys of the mesh: {error}", file.display());
        Failure::rule(FailureKind::SchemaInvalid, "mesh-keys", message)
    })
}

/// Whole or not at all: written aside, then renamed into its place.
fn save(member: &StoredIdentity, file: &Path) -> Result<(), Failure> {
    let text = SecretString::from(output::json(member));
    let fresh = file.with_extension("new");
    let write = || {
        let mut kept = File::options().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        kept.write_all(text.expose_secret().as_bytes())?;
        kept.sync_all()?;
        std::fs::rename(&fresh, file)?;
        file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    write().map_err(|error: std::io::Error| not_kept(file, &error))
}

fn not_kept(path: &Path, error: &std::io::Error) -> Failure {
    let kind = if error.kind() == ErrorKind::NotFound { FailureKind::NotFound } else { FailureKind::InfraFailed };
    let hint = "look at the file and at who may read it; `--data-dir` names another place";
    errors::with_hint(Failure::rule(kind, "mesh-keys", format!("{}: {error}", path.display())), hint)
}
