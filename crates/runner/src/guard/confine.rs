//! The inner step: ends with the guard, applies the resource limits and the confinement to a part of the file system, and
//! becomes the program. The program cannot undo any of this, and every process it starts inherits it.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit};

use super::{
    order::{Limits, Order, Reach},
    privileges,
};

/// The newest Landlock interface that we use. An older kernel enforces the part that it supports.
const KNOWN: ABI = ABI::V6;
/// Devices that can be written to. Not all of `/dev`: in a pod it also has the file of the runner's report.
const DEVICES: [&str; 9] = [
    "/dev/full",
    "/dev/null",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/random",
    "/dev/shm",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// Becomes the program. Returns only if that fails.
pub fn confine(order: &Order, guard_pid: i32, program: &Path, arguments: &[OsString]) -> io::Error {
    match prepare(order, guard_pid) {
        Ok(()) => {
            let mut command = Command::new(program);
            if let Some(tmp) = order.reach.as_ref().and_then(|reach| reach.tmp.as_ref()) {
                command.env("TMPDIR", tmp);
            }
            command.args(arguments).exec()
        }
        Err(error) => error,
    }
}

fn prepare(order: &Order, guard_pid: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != guard_pid) {
        return Err(io::Error::other("the guard is gone"));
    }
    apply_limits(&order.limits)?;
    privileges::drop_privileges()?;
    let Some(reach) = &order.reach else { return Ok(()) };
    if let Some(tmp) = &reach.tmp {
        std::fs::create_dir_all(tmp)?;
    }
    restrict(reach, false).map_err(io::Error::other)
}

fn apply_limits(limits: &Limits) -> io::Result<()> {
    let requested = [
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, limits.open_files),
        (Resource::Nproc, limits.processes),
        // No core dumps: the program's memory may hold secrets.
        (Resource::Core, Some(0)),
    ];
    for (resource, limit) in requested {
        let Some(limit) = limit else { continue };
        // An existing lower limit stays.
        let limit = getrlimit(resource).maximum.map_or(limit, |maximum| maximum.min(limit));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(())
}

/// Confines this thread to a part of the file system, and denies it TCP connections if it is to be offline.
pub(super) fn restrict(reach: &Reach, is_offline: bool) -> Result<(), RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::Execute;
    let use_device: BitFlags<AccessFs> = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        // The program can signal its own processes only, not even the guard's.
        .scope(Scope::Signal)?;
    if is_offline {
        rules = rules.handle_access(AccessNet::from_all(KNOWN))?.scope(Scope::AbstractUnixSocket)?;
    }
    rules
        .create()?
        // A rule holds for everything below its directory: without this one, `/` and the other directories above the hidden ones
        // could not be listed. So the names in hidden directories can be listed, too.
        .add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(all_but(&reach.hidden), read))?
        .add_rules(path_beneath_rules(DEVICES, use_device))?
        .add_rules(path_beneath_rules(&reach.readable, AccessFs::from_read(KNOWN)))?
        .add_rules(path_beneath_rules(&reach.writable, AccessFs::from_all(KNOWN)))?
        .restrict_self()?;
    Ok(())
}

/// The largest directory trees that together hold everything except the hidden ones. Symbolic links are skipped: their
/// targets are covered by their own paths.
fn all_but(hidden: &[PathBuf]) -> Vec<PathBuf> {
    let hidden: Vec<_> = hidden.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let (mut trees, mut next) = (vec![], vec![PathBuf::from("/")]);
    while let Some(path) = next.pop() {
        if !hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            trees.push(path);
        } else if !hidden.contains(&path) {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let real = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
            next.extend(real.map(|entry| entry.path()));
        }
    }
    trees
}

/// The newest interface version that the kernel supports completely.
pub(super) fn landlock_level() -> u32 {
    let works = |abi: ABI| {
        let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let rules = rules.handle_access(AccessFs::from_all(abi));
        let rules = if abi >= ABI::V6 { rules.and_then(|rules| rules.scope(Scope::Signal)) } else { rules };
        rules.and_then(Ruleset::create).is_ok()
    };
    let newest = [ABI::V6, ABI::V5, ABI::V3, ABI::V2, ABI::V1].into_iter().find(|abi| works(*abi));
    newest.map_or(0, |abi| abi as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_cover_everything_except_hidden_directories() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for path in ["a/secret/deep", "a/open", "b"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("a/secret"), root.join("link")).unwrap();
        let trees = all_but(&[root.join("a/secret")]);
        let covers = |path: &str| trees.iter().any(|tree| Path::new(path).starts_with(tree));
        for path in ["a/open", "b"] {
            assert!(covers(root.join(path).to_str().unwrap()), "{path}");
        }
        assert!(covers("/proc") && covers("/dev/null"));
        for path in ["a/secret", "a/secret/deep", "link", "a", ""] {
            assert!(!covers(root.join(path).to_str().unwrap()), "{path}");
        }
        assert_eq!(all_but(&[]), [PathBuf::from("/")]);
    }
}
