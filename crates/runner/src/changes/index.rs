//! Git with an index and objects of our own, which no repository of a workspace shares.

use std::{io, path::PathBuf, process::Stdio};

use tokio::{
    io::AsyncReadExt,
    process::Command,
    time::{Duration, timeout},
};

/// Limit for each run of git.
const GIT_MS_MAX: u64 = 10_000;

#[derive(Clone, Debug)]
pub(super) struct Index {
    pub(super) directory: PathBuf,
    /// `None` if only stored objects are read.
    pub(super) workspace: Option<PathBuf>,
}

impl Index {
    /// Runs git and returns its output, or its first `bytes_max` bytes.
    pub(super) async fn git(&self, arguments: &[&str], bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut child = self.command(arguments).spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("git has no output pipe"))?;
        let mut output = vec![];
        let run = async {
            stdout.take(bytes_max).read_to_end(&mut output).await?;
            if output.len() as u64 >= bytes_max {
                child.kill().await?;
                return Ok(true);
            }
            // `git add` skips unreadable files and repositories without a commit, and exits with 1.
            let code = child.wait().await?.code();
            Ok(code == Some(0) || arguments[0] == "add" && code == Some(1))
        };
        match timeout(Duration::from_millis(GIT_MS_MAX), run).await {
            Ok(Ok(true)) => Ok(output),
            Ok(Ok(false)) => Err(io::Error::other(format!("git {} failed", arguments[0]))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other(format!("git {} took too long", arguments[0]))),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        let settings = [
            "core.quotePath=false",
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.autocrlf=false",
            "core.safecrlf=false",
            "advice.addEmbeddedRepo=false",
            "gc.auto=0",
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting])).args(arguments);
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.current_dir(self.workspace.as_ref().unwrap_or(&self.directory));
        command.envs(self.workspace.as_ref().map(|workspace| ("GIT_WORK_TREE", workspace)));
        command.env("GIT_DIR", &self.directory).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", "/nonexistent");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }
}
