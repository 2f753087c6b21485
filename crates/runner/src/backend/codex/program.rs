//! Finds the native program of Codex. The `codex` that npm puts on the PATH is a launcher for Node: killing it leaves the
//! native program alive, which still holds the thread's lock. So the native binary is always started directly.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use tokio::{
    process::Command,
    time::{Duration, timeout},
};

/// Limit for asking a program for its version.
const VERSION_MS_MAX: u64 = 10_000;
/// The name that Codex prints before its version.
const NAME: &str = "codex-cli ";
const VERSION_CHARS_MAX: usize = 80;

/// The native program: the configured one, else the one on the PATH, else the one inside the npm package there. The error is
/// a message for people about what was searched. A configured script is accepted as it is.
pub fn find(configured: Option<&Path>, search_path: Option<&OsStr>) -> Result<PathBuf, String> {
    if let Some(path) = configured {
        let script = || path.canonicalize().ok().filter(|real| real.is_file() && package(real).is_none());
        return native(path)
            .or_else(script)
            .ok_or_else(|| format!("{} is not a Codex program that can be started", path.display()));
    }
    let folders = search_path.into_iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute());
    let found: Vec<_> = folders.map(|folder| folder.join("codex")).filter(|path| path.is_file()).collect();
    match found.iter().find_map(|path| native(path)) {
        Some(path) => Ok(path),
        None if found.is_empty() => Err("there is no `codex` on the PATH".into()),
        None => Err(format!("{} is only a launcher, and there is no native binary beside it", found[0].display())),
    }
}

/// The path itself, or the binary that npm's launcher would start.
fn native(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().ok()?;
    if is_binary(&real) {
        return Some(real);
    }
    // The binaries are in separate packages, inside or beside the launcher's.
    let package = package(&real)?;
    let scopes = [package.join("node_modules/@openai"), package.parent()?.to_owned()];
    scopes.iter().flat_map(|scope| children(scope)).filter(|folder| is_platform(folder)).find_map(|folder| {
        let vendors = children(&folder.join("vendor"));
        vendors.into_iter().map(|vendor| vendor.join("bin/codex")).find(|path| is_binary(path))
    })
}

/// The npm package that a launcher belongs to: `…/node_modules/@openai/codex/bin/codex.js`.
fn package(launcher: &Path) -> Option<&Path> {
    launcher.ancestors().find(|folder| folder.ends_with("@openai/codex"))
}

/// Whether the folder is the package for this machine, such as `codex-linux-x64`.
fn is_platform(folder: &Path) -> bool {
    let system = if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS };
    let processor = if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" };
    folder.file_name().is_some_and(|name| name == format!("codex-{system}-{processor}").as_str())
}

fn children(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Whether the file is ELF or Mach-O, by its first bytes.
fn is_binary(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (magic == *b"\x7fELF" || magic == [0xcf, 0xfa, 0xed, 0xfe])
}

/// The version that the program reports. The error is the reason why it does not work.
pub async fn version(program: &Path) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg("--version").env_clear().kill_on_drop(true);
    let output = timeout(Duration::from_millis(VERSION_MS_MAX), command.output()).await;
    let output = output.map_err(|_| "it does not respond".to_owned())?.map_err(|error| error.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().next().unwrap_or_default();
    match line.strip_prefix(NAME) {
        _ if !output.status.success() => Err(format!("it ended with {}", output.status)),
        Some(version) => Ok(version.trim().chars().take(VERSION_CHARS_MAX).collect()),
        None => Err("it does not report that it is Codex".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    const BINARY: &[u8] = b"\x7fELF and more";

    fn platform() -> String {
        let system = if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS };
        format!("codex-{system}-{}", if cfg!(target_arch = "x86_64") { "x64" } else { "arm64" })
    }

    #[test]
    fn the_native_binary_behind_npms_launcher_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let modules = scratch.path().canonicalize().unwrap().join("lib/node_modules/@openai");
        let bin = scratch.path().join("bin");
        let binary = modules.join(platform()).join("vendor/some-triple/bin/codex");
        for folder in [&modules.join("codex/bin"), &bin, &binary.parent().unwrap().to_owned()] {
            create_dir_all(folder).unwrap();
        }
        write(modules.join("codex/bin/codex.js"), "#!/usr/bin/env node\n").unwrap();
        std::os::unix::fs::symlink(modules.join("codex/bin/codex.js"), bin.join("codex")).unwrap();
        assert!(find(None, Some(bin.as_os_str())).unwrap_err().contains("only a launcher"));
        write(&binary, BINARY).unwrap();
        assert_eq!(find(None, Some(bin.as_os_str())).unwrap(), binary);
        assert_eq!(find(Some(&modules.join("codex/bin/codex.js")), None).unwrap(), binary);
    }

    #[tokio::test]
    async fn a_program_must_report_that_it_is_codex() {
        let refused = version(Path::new("/bin/true")).await.unwrap_err();
        assert!(refused.contains("does not report that it is Codex"), "{refused}");
        assert!(version(Path::new("/bin/false")).await.unwrap_err().contains("it ended with"));
    }

    #[test]
    fn a_configured_program_is_never_replaced_by_another() {
        let scratch = tempfile::tempdir().unwrap();
        write(scratch.path().join("codex"), BINARY).unwrap();
        let path = Some(scratch.path().as_os_str());
        assert!(find(None, path).is_ok());
        assert!(find(Some(&scratch.path().join("absent")), path).is_err());
        assert!(find(None, Some(OsStr::new("relative:"))).is_err());
    }
}
