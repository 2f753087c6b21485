//! A sandbox for the tools of Codex where the system allows no namespaces, as in a pod. Codex starts each tool through
//! bubblewrap; here our own binary takes bubblewrap's place. It reads bubblewrap's command line and enforces it by Landlock
//! instead of mounts, then becomes the command. Whatever it does not know, or cannot enforce, is an error: the tool does not
//! start.
//!
//! Landlock cannot take rights away below a directory that may be written. So the folders that Codex protects in a workspace
//! (`.git`, `.codex`, `.agents`) are writable here. Nothing else below a writable directory can be read-only or hidden.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{TOOL_LANDLOCK_LEVEL_MIN, confine, order::Reach, privileges};

/// Bubblewrap's options that this sandbox knows, as its help. Codex looks here for the options that it needs.
pub const TOOL_SANDBOX_HELP: &str = "usage: bwrap [OPTIONS...] [--] COMMAND [ARGS...]

    --argv0 VALUE         Set argv[0] of the command
    --chdir DIR           Change directory to DIR
    --bind SRC DEST       Make DEST writable; SRC must be the same path
    --bind-try SRC DEST   As --bind
    --ro-bind SRC DEST    Make DEST readable; SRC must be the same path, or /dev/null, which hides DEST
    --ro-bind-try SRC DEST  As --ro-bind
    --ro-bind-data FD DEST  Hide DEST
    --tmpfs DEST          Hide DEST
    --perms OCTAL         Permissions of the next --tmpfs or --ro-bind-data
    --remount-ro DEST     Make DEST read-only
    --unshare-net         Deny TCP connections
    --dev DEST, --proc DEST, --dir DEST, --cap-drop CAP, --as-pid-1, --die-with-parent, --new-session,
    --unshare-user, --unshare-user-try, --unshare-pid, --unshare-ipc, --unshare-uts, --unshare-cgroup,
    --unshare-cgroup-try  Accepted; the command never has capabilities and ends with its parent
";
/// Permissions with which Codex mounts an empty directory over a folder that its tools must not create.
const PROTECTED: &str = "555";
const NOTHING: &str = "/dev/null";
/// The folders that Codex protects in directories that its tools may write. In a pod these end with the pod, so the folders may be
/// writable there.
pub(crate) const PROTECTED_FOLDERS: [&str; 4] = [".agents", ".aws", ".codex", ".git"];
/// How the folder of Codex for its own mounts begins, in the directory for temporary files.
const MOUNT_TARGETS: &str = "codex-bwrap-synthetic-mount-targets-";

/// What a command may do with a part of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Hidden,
    Readable,
    Writable,
    /// Read-only for the protection of a workspace's own folders. Not enforceable below a writable directory.
    Protected,
}

/// A command in its sandbox, as bubblewrap's arguments describe it.
#[derive(Debug, Default, PartialEq)]
struct ToolOrder {
    reach: Reach,
    is_offline: bool,
    directory: Option<PathBuf>,
    argv0: Option<OsString>,
    command: Vec<OsString>,
}

/// Becomes the command that bubblewrap's arguments name. Returns only if that fails.
pub fn run_tool(arguments: &[OsString]) -> io::Error {
    match ToolOrder::read(arguments).and_then(start) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn start(order: ToolOrder) -> io::Result<std::convert::Infallible> {
    let [program, arguments @ ..] = &order.command[..] else { return Err(invalid("there is no command")) };
    check_level(super::landlock_level())?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    privileges::drop_privileges()?;
    confine::restrict(&order.reach, order.is_offline).map_err(io::Error::other)?;
    let mut command = Command::new(program);
    command.arg0(order.argv0.as_deref().unwrap_or(program)).args(arguments);
    if let Some(directory) = &order.directory {
        command.current_dir(directory);
    }
    Err(command.exec())
}

/// Rejects a kernel whose Landlock does not control everything that the file system rules need.
fn check_level(level: u32) -> io::Result<()> {
    if level >= TOOL_LANDLOCK_LEVEL_MIN {
        return Ok(());
    }
    let found = if level == 0 { "has no Landlock".to_owned() } else { format!("has version {level} of Landlock") };
    let message = format!("the kernel {found}; tools need version {TOOL_LANDLOCK_LEVEL_MIN} (Linux 6.2) or newer");
    Err(io::Error::other(message))
}

impl ToolOrder {
    fn read(arguments: &[OsString]) -> io::Result<Self> {
        let (mut order, mut mounts, mut perms) = (Self::default(), Mounts::default(), None);
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let option = word.to_str().ok_or_else(|| invalid("an option is no text"))?;
            let mut next = || words.next().ok_or_else(|| invalid(&format!("{option} lacks a value")));
            match option {
                // What it has instead: no capabilities, and a signal when its parent ends.
                "--as-pid-1"
                | "--die-with-parent"
                | "--new-session"
                | "--unshare-user"
                | "--unshare-user-try"
                | "--unshare-pid"
                | "--unshare-ipc"
                | "--unshare-uts"
                | "--unshare-cgroup"
                | "--unshare-cgroup-try" => {}
                "--dev" | "--proc" | "--dir" | "--cap-drop" => {
                    next()?;
                }
                "--unshare-net" => order.is_offline = true,
                "--argv0" => order.argv0 = Some(next()?.clone()),
                "--chdir" => order.directory = Some(next()?.into()),
                "--perms" => perms = Some(next()?.clone()),
                "--tmpfs" => {
                    let is_protected = perms.take().is_some_and(|perms| perms == PROTECTED);
                    mounts.add(next()?, if is_protected { View::Protected } else { View::Hidden })?;
                }
                "--ro-bind-data" => {
                    next()?;
                    perms = None;
                    mounts.add(next()?, View::Hidden)?;
                }
                "--remount-ro" => mounts.make_read_only(Path::new(next()?)),
                "--bind" | "--bind-try" => mounts.bind(next()?, next()?, View::Writable)?,
                "--ro-bind" | "--ro-bind-try" => mounts.bind(next()?, next()?, View::Readable)?,
                "--" => {
                    order.command = words.cloned().collect();
                    break;
                }
                program if !program.starts_with('-') => {
                    order.command = [word].into_iter().chain(words).cloned().collect();
                    break;
                }
                other => return Err(invalid(&format!("{other} is not known"))),
            }
        }
        order.reach = mounts.reach()?;
        Ok(order)
    }
}

/// What is visible at which path, in the order of the mounts. A path has the view of the deepest mount that contains it.
#[derive(Debug)]
struct Mounts(Vec<(PathBuf, View)>);

impl Default for Mounts {
    fn default() -> Self {
        Self(vec![(PathBuf::from("/"), View::Hidden)])
    }
}

impl Mounts {
    fn bind(&mut self, source: &OsStr, target: &OsStr, view: View) -> io::Result<()> {
        match source {
            source if source == target => self.add(target, view),
            source if source == NOTHING && view == View::Readable => self.add(target, View::Protected),
            _ => Err(invalid("a path cannot be mounted at another one")),
        }
    }

    fn add(&mut self, path: &OsStr, view: View) -> io::Result<()> {
        let path = PathBuf::from(path);
        if !path.is_absolute() {
            return Err(invalid("a path is not absolute"));
        }
        // A mount covers what was mounted below it before.
        self.0.retain(|(earlier, _)| !earlier.starts_with(&path));
        self.0.push((path, view));
        Ok(())
    }

    fn make_read_only(&mut self, path: &Path) {
        for (mounted, view) in &mut self.0 {
            if mounted == path && *view == View::Writable {
                *view = View::Readable;
            }
        }
    }

    /// The mounts that contain a path, without one at the path itself.
    fn outer<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a (PathBuf, View)> {
        self.0.iter().filter(move |(mounted, _)| path != mounted && path.starts_with(mounted))
    }

    /// The view of the deepest mount above a path.
    fn above(&self, path: &Path) -> View {
        let deepest = self.outer(path).max_by_key(|(mounted, _)| mounted.components().count());
        deepest.map_or(View::Hidden, |(_, view)| *view)
    }

    /// Whether Landlock gets a rule of its own for a mount. The rule holds for everything below it, whatever is mounted there.
    fn has_rule(&self, path: &Path, view: View) -> bool {
        view == View::Writable || self.is_readable_in_hidden(path, view)
    }

    fn is_readable_in_hidden(&self, path: &Path, view: View) -> bool {
        view == View::Readable && path != Path::new("/") && self.above(path) == View::Hidden
    }

    /// The same as a part of the file system. An error if Landlock cannot enforce it.
    fn reach(&self) -> io::Result<Reach> {
        let mut reach = Reach::default();
        for (path, view) in &self.0 {
            let is_below_writable = self.outer(path).any(|(_, view)| *view == View::Writable);
            let is_below_rule = self.outer(path).any(|(mounted, view)| self.has_rule(mounted, *view));
            match view {
                View::Writable => reach.writable.push(path.clone()),
                // Nothing can be taken away there.
                View::Readable | View::Protected if is_below_writable => {
                    if !is_protected_folder(path) {
                        return Err(invalid(&format!("{} cannot be read-only", path.display())));
                    }
                }
                View::Readable if self.is_readable_in_hidden(path, *view) => reach.readable.push(path.clone()),
                // Readable because of its parent.
                View::Readable => {}
                View::Hidden | View::Protected if is_below_rule => {
                    return Err(invalid(&format!("{} cannot be hidden", path.display())));
                }
                View::Hidden | View::Protected => reach.hidden.push(path.clone()),
            }
        }
        Ok(reach)
    }
}

/// Whether a path is one of the folders that Codex protects, or in one.
fn is_protected_folder(path: &Path) -> bool {
    let is_one = |name: &str| PROTECTED_FOLDERS.contains(&name) || name.starts_with(MOUNT_TARGETS);
    path.components().any(|part| part.as_os_str().to_str().is_some_and(is_one))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> io::Result<ToolOrder> {
        ToolOrder::read(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    /// The arguments of Codex 0.166.0 for a tool with the sandbox `workspace-write` and no network.
    #[test]
    fn arguments_of_codex_become_a_part_of_the_file_system() {
        let line = "--as-pid-1 --new-session --die-with-parent --ro-bind / / --dev /dev --perms 111 --tmpfs /home/agent \
            --dir /home/agent/scratch --remount-ro /home/agent --bind /home/agent/scratch /home/agent/scratch \
            --perms 555 --tmpfs /home/agent/scratch/.git --remount-ro /home/agent/scratch/.git --bind /project /project \
            --ro-bind /project/.git /project/.git --perms 555 --tmpfs /project/.codex --perms 000 --tmpfs /secret \
            --remount-ro /secret --unshare-user --unshare-pid --unshare-ipc --unshare-net --proc /proc --cap-drop ALL \
            --argv0 codex-linux-sandbox -- /bin/codex --command-cwd /project -- sh";
        let order = read(line).unwrap();
        assert_eq!(order.reach.writable, paths(&["/home/agent/scratch", "/project"]));
        assert_eq!(order.reach.hidden, paths(&["/home/agent", "/secret"]));
        assert_eq!(order.reach.readable, paths(&[]));
        assert!(order.is_offline);
        assert_eq!(order.argv0, Some("codex-linux-sandbox".into()));
        assert_eq!(order.command, ["/bin/codex", "--command-cwd", "/project", "--", "sh"].map(OsString::from));
    }

    #[test]
    fn without_a_root_only_what_is_named_can_be_read() {
        let order = read("--tmpfs / --ro-bind /usr /usr --ro-bind /lib /lib -- /usr/bin/true").unwrap();
        assert_eq!((order.reach.readable, order.reach.hidden), (paths(&["/usr", "/lib"]), paths(&["/"])));
        assert!(!order.is_offline);
        let probe = read("--unshare-user --unshare-net --ro-bind / / /bin/true").unwrap();
        assert_eq!((probe.command, probe.reach), (vec!["/bin/true".into()], Reach::default()));
    }

    #[test]
    fn what_landlock_cannot_enforce_is_rejected() {
        for line in [
            "--ro-bind / / --bind /project /project --perms 000 --tmpfs /project/secret -- sh",
            "--tmpfs / --ro-bind /usr /usr --tmpfs /usr/secret -- sh",
            // The rule of any mount above it grants access, not only that of the deepest one.
            "--ro-bind / / --bind /project /project --ro-bind /project/.git /project/.git --tmpfs /project/.git/x -- sh",
            "--tmpfs / --ro-bind /usr /usr --ro-bind /usr/lib /usr/lib --tmpfs /usr/lib/x -- sh",
            "--ro-bind / / --bind /project /project --ro-bind /project/policy /project/policy -- sh",
            "--ro-bind / / --bind /project /project --perms 555 --tmpfs /project/policy -- sh",
            "--ro-bind / / --bind /project /project --ro-bind /dev/null /project/policy -- sh",
            "--ro-bind / / --bind /a /b -- sh",
            "--ro-bind / / --bind a a -- sh",
            "--ro-bind / / --overlay-src /x -- sh",
            "--ro-bind / / --tmpfs",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_kernel_whose_landlock_does_not_control_truncation_is_rejected() {
        for level in [0, 1, 2] {
            let error = check_level(level).unwrap_err().to_string();
            assert!(error.contains("version 3 (Linux 6.2) or newer"), "{error}");
        }
        for level in [3, 4, 6] {
            check_level(level).unwrap();
        }
    }

    #[test]
    fn the_last_mount_of_a_path_counts() {
        let order = read("--bind / / --ro-bind / / --bind /project /project --remount-ro /project -- sh").unwrap();
        assert_eq!((order.reach.writable, order.reach.readable), (paths(&[]), paths(&[])));
    }
}
