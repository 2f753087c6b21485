//! The files that a backend may request: text, inside its workspace. Every path is resolved by the kernel from a handle of
//! the workspace's directory. The kernel refuses to leave it by `..` or by a symbolic link, even by one that was created a
//! moment before.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use super::wire::{ReadFile, WriteFile};

const READ_BYTES_MAX: u64 = 4 * 1024 * 1024;
const WRITE_BYTES_MAX: usize = 4 * 1024 * 1024;
const DEPTH_MAX: usize = 64;

pub(super) struct Files {
    root: PathBuf,
    /// The same path without symbolic links. A backend may use either.
    real: PathBuf,
    handle: OwnedFd,
}

impl Files {
    pub(super) fn in_workspace(root: &Path) -> std::io::Result<Self> {
        let handle = File::open(root)?.into();
        Ok(Self { root: root.to_owned(), real: root.canonicalize()?, handle })
    }

    /// Reads a text, or some lines of it.
    pub(super) fn read(&self, params: &ReadFile) -> Result<String, String> {
        let file = self.open(&self.relative_path(&params.path)?, FileAccess::Read)?;
        let mut text = String::new();
        let read = file.take(READ_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| describe_error(&params.path, &error))?;
        if text.len() as u64 > READ_BYTES_MAX {
            return Err(format!("{}: over {READ_BYTES_MAX} bytes", params.path));
        }
        if params.line.is_none() && params.limit.is_none() {
            return Ok(text);
        }
        let first = params.line.unwrap_or(1).saturating_sub(1);
        Ok(text.split_inclusive('\n').skip(first).take(params.limit.unwrap_or(usize::MAX)).collect())
    }

    pub(super) fn write(&self, params: &WriteFile) -> Result<(), String> {
        if params.content.len() > WRITE_BYTES_MAX {
            return Err(format!("{}: over {WRITE_BYTES_MAX} bytes", params.path));
        }
        let path = self.relative_path(&params.path)?;
        self.create_parents(&path)?;
        let mut file = self.open(&path, FileAccess::Write)?;
        let written = file.set_len(0).and_then(|()| file.write_all(params.content.as_bytes()));
        written.map_err(|error| describe_error(&params.path, &error))
    }

    /// A directory below the workspace, for a program to work in. The workspace itself if none is given.
    pub(super) fn directory(&self, path: Option<&str>) -> Result<PathBuf, String> {
        let Some(path) = path else { return Ok(self.root.clone()) };
        let real = Path::new(path).canonicalize().map_err(|error| describe_error(path, &error))?;
        match real.starts_with(&self.real) && real.is_dir() {
            true => Ok(real),
            false => Err(outside(path)),
        }
    }

    /// The path relative to the workspace.
    fn relative_path(&self, requested: &str) -> Result<PathBuf, String> {
        let path = Path::new(requested);
        let relative = match path.is_absolute() {
            false => Some(path),
            true => path.strip_prefix(&self.root).or_else(|_| path.strip_prefix(&self.real)).ok(),
        };
        let relative = relative.filter(|path| !path.as_os_str().is_empty() && path.components().count() <= DEPTH_MAX);
        relative.map(Path::to_owned).ok_or_else(|| outside(requested))
    }

    #[cfg(target_os = "linux")]
    fn open(&self, path: &Path, access: FileAccess) -> Result<File, String> {
        use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
        let flags = match access {
            FileAccess::Read => OFlags::RDONLY,
            FileAccess::Write => OFlags::WRONLY | OFlags::CREATE,
            FileAccess::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        };
        // Do not wait for the other end of a named pipe.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = if matches!(access, FileAccess::Write) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(&self.handle, path, flags, mode, resolve).map(File::from);
        let file = opened.map_err(|error| describe_error(&path.to_string_lossy(), &error.into()))?;
        let kind = file.metadata().map_err(|error| describe_error(&path.to_string_lossy(), &error))?;
        match kind.is_file() || matches!(access, FileAccess::Directory) {
            true => Ok(file),
            false => Err(format!("{}: not a file", path.display())),
        }
    }

    /// Other kernels cannot confine a path to a directory, so no file is opened for a backend.
    #[cfg(not(target_os = "linux"))]
    fn open(&self, path: &Path, _access: FileAccess) -> Result<File, String> {
        Err(format!("{}: files are served on Linux only", path.display()))
    }

    fn create_parents(&self, path: &Path) -> Result<(), String> {
        let mut parent = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(name) = part else { return Err(outside(&path.to_string_lossy())) };
            // A handle of the directory so far: a link that replaces it in the meantime has no effect.
            let above: Option<OwnedFd> = match parent.as_os_str().is_empty() {
                true => None,
                false => Some(self.open(&parent, FileAccess::Directory)?.into()),
            };
            let made = rustix::fs::mkdirat(above.as_ref().unwrap_or(&self.handle), name, 0o755.into());
            match made {
                Ok(()) | Err(rustix::io::Errno::EXIST) => parent.push(name),
                Err(error) => return Err(describe_error(&path.to_string_lossy(), &error.into())),
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum FileAccess {
    Read,
    Write,
    Directory,
}

fn outside(path: &str) -> String {
    format!("{path}: not inside the workspace")
}

fn describe_error(path: &str, error: &std::io::Error) -> String {
    // The kernel returns EXDEV if a path would have left the directory.
    if error.kind() == std::io::ErrorKind::CrossesDevices { outside(path) } else { format!("{path}: {}", error.kind()) }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(files: &Files, path: &str) -> Result<String, String> {
        files.read(&ReadFile { path: path.into(), line: None, limit: None })
    }

    fn write(files: &Files, path: &str) -> Result<(), String> {
        files.write(&WriteFile { path: path.into(), content: "new".into() })
    }

    #[test]
    fn no_path_or_link_leads_out_of_the_workspace() {
        let above = tempfile::tempdir().unwrap();
        let root = above.path().join("work");
        std::fs::create_dir_all(root.join("in")).unwrap();
        std::fs::write(above.path().join("secret"), "secret").unwrap();
        std::fs::write(root.join("in/text"), "one\ntwo\nthree\n").unwrap();
        symlink(above.path().join("secret"), root.join("leak")).unwrap();
        symlink("../..", root.join("in/up")).unwrap();
        symlink("text", root.join("in/fine")).unwrap();
        let files = Files::in_workspace(&root).unwrap();
        let absolute = root.join("in/text");
        assert_eq!(read(&files, absolute.to_str().unwrap()).unwrap(), "one\ntwo\nthree\n");
        assert_eq!(read(&files, "in/fine").unwrap(), "one\ntwo\nthree\n");
        let some = ReadFile { path: "in/text".into(), line: Some(2), limit: Some(1) };
        assert_eq!(files.read(&some).unwrap(), "two\n");
        let secret = above.path().join("secret");
        for path in
            ["leak", "in/up/secret", "../secret", "in/../../secret", "/etc/passwd", "", ".", secret.to_str().unwrap()]
        {
            assert!(read(&files, path).is_err(), "{path} was read");
            assert!(write(&files, path).is_err(), "{path} was written");
        }
        assert!(write(&files, "in/up/made").is_err() && write(&files, "in/up/x/made").is_err());
        assert_eq!(std::fs::read_to_string(secret).unwrap(), "secret");
        write(&files, "new/deep/file").unwrap();
        assert_eq!(std::fs::read_to_string(root.join("new/deep/file")).unwrap(), "new");
        assert!(files.directory(Some(above.path().to_str().unwrap())).is_err());
        assert!(files.directory(Some(root.join("in/up").to_str().unwrap())).is_err());
    }
}
