//! The files an agent may ask for: text, inside its workspace. Every path is opened from a handle of the workspace's
//! directory by the kernel itself, which refuses to leave it by `..` or by a link, also one put there a moment before.

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

pub struct Files {
    root: PathBuf,
    /// The same without links, by which an agent may know it too.
    real: PathBuf,
    handle: OwnedFd,
}

impl Files {
    pub fn in_workspace(root: &Path) -> std::io::Result<Self> {
        let handle = File::open(root)?.into();
        Ok(Self { root: root.to_owned(), real: root.canonicalize()?, handle })
    }

    /// A text, or some lines of one.
    pub fn read(&self, asked: &ReadFile) -> Result<String, String> {
        let file = self.open(&self.within(&asked.path)?, Way::Read)?;
        let mut text = String::new();
        let read = file.take(READ_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| told(&asked.path, &error))?;
        if text.len() as u64 > READ_BYTES_MAX {
            return Err(format!("{}: over {READ_BYTES_MAX} bytes", asked.path));
        }
        if asked.line.is_none() && asked.limit.is_none() {
            return Ok(text);
        }
        let first = asked.line.unwrap_or(1).saturating_sub(1);
        Ok(text.split_inclusive('\n').skip(first).take(asked.limit.unwrap_or(usize::MAX)).collect())
    }

    pub fn write(&self, asked: &WriteFile) -> Result<(), String> {
        if asked.content.len() > WRITE_BYTES_MAX {
            return Err(format!("{}: over {WRITE_BYTES_MAX} bytes", asked.path));
        }
        let path = self.within(&asked.path)?;
        self.make_parents(&path)?;
        let mut file = self.open(&path, Way::Write)?;
        let written = file.set_len(0).and_then(|()| file.write_all(asked.content.as_bytes()));
        written.map_err(|error| told(&asked.path, &error))
    }

    /// A directory below the workspace, for a program to work in.
    pub fn directory(&self, asked: Option<&str>) -> Result<PathBuf, String> {
        let Some(asked) = asked else { return Ok(self.root.clone()) };
        let real = Path::new(asked).canonicalize().map_err(|error| told(asked, &error))?;
        match real.starts_with(&self.real) && real.is_dir() {
            true => Ok(real),
            false => Err(outside(asked)),
        }
    }

    /// The path as seen from the workspace.
    fn within(&self, asked: &str) -> Result<PathBuf, String> {
        let path = Path::new(asked);
        let relative = match path.is_absolute() {
            false => Some(path),
            true => path.strip_prefix(&self.root).or_else(|_| path.strip_prefix(&self.real)).ok(),
        };
        let relative = relative.filter(|path| !path.as_os_str().is_empty() && path.components().count() <= DEPTH_MAX);
        relative.map(Path::to_owned).ok_or_else(|| outside(asked))
    }

    #[cfg(target_os = "linux")]
    fn open(&self, path: &Path, way: Way) -> Result<File, String> {
        use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
        let flags = match way {
            Way::Read => OFlags::RDONLY,
            Way::Write => OFlags::WRONLY | OFlags::CREATE,
            Way::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        };
        // Not to wait for whoever writes to a pipe.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = if matches!(way, Way::Write) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(&self.handle, path, flags, mode, resolve).map(File::from);
        let file = opened.map_err(|error| told(&path.to_string_lossy(), &error.into()))?;
        let kind = file.metadata().map_err(|error| told(&path.to_string_lossy(), &error))?;
        match kind.is_file() || matches!(way, Way::Directory) {
            true => Ok(file),
            false => Err(format!("{}: not a file", path.display())),
        }
    }

    /// Without a kernel that can keep to a directory, no file is opened for an agent.
    #[cfg(not(target_os = "linux"))]
    fn open(&self, path: &Path, _way: Way) -> Result<File, String> {
        Err(format!("{}: files are served on Linux only", path.display()))
    }

    fn make_parents(&self, path: &Path) -> Result<(), String> {
        let mut parent = PathBuf::new();
        for part in path.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(name) = part else { return Err(outside(&path.to_string_lossy())) };
            // The directory so far, as a handle: a link that takes its place meanwhile changes nothing.
            let above: Option<OwnedFd> = match parent.as_os_str().is_empty() {
                true => None,
                false => Some(self.open(&parent, Way::Directory)?.into()),
            };
            let made = rustix::fs::mkdirat(above.as_ref().unwrap_or(&self.handle), name, 0o755.into());
            match made {
                Ok(()) | Err(rustix::io::Errno::EXIST) => parent.push(name),
                Err(error) => return Err(told(&path.to_string_lossy(), &error.into())),
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
    Directory,
}

fn outside(path: &str) -> String {
    format!("{path}: not inside the workspace")
}

fn told(path: &str, error: &std::io::Error) -> String {
    // EXDEV is how the kernel says that a path would have left the directory.
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
    fn no_path_and_no_link_leads_out_of_the_workspace() {
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
