//! `qwen serve` as a child process, in a directory of its own. No model is called, so that it is given none that answers.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::sleep;

use super::{QwenPrograms, Side};
use crate::machine::{now, since};
use crate::outcome::Outcome;

const READY_TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(10);
const TOKEN: &str = "token-of-the-published-daemon";
/// Nothing listens there.
const NO_MODEL: &str = "http://127.0.0.1:9/v1";

pub(super) struct Published {
    child: Child,
    pub(super) side: Side,
}

impl Published {
    pub(super) async fn start(programs: &QwenPrograms, scratch: &Path) -> Outcome<Self> {
        let (home, workspace) = (scratch.join("qwen"), scratch.join("qwen-workspace"));
        std::fs::create_dir_all(home.join(".qwen"))?;
        std::fs::create_dir_all(&workspace)?;
        let settings = format!(
            r#"{{"security":{{"auth":{{"selectedType":"openai","apiKey":"key","baseUrl":"{NO_MODEL}"}}}},"model":{{"name":"none"}},
            "privacy":{{"usageStatisticsEnabled":false}},"general":{{"enableAutoUpdate":false}}}}"#
        );
        std::fs::write(home.join(".qwen/settings.json"), settings)?;
        let workspace = workspace.canonicalize()?;
        let log = home.join("log");
        let mut command = Command::new(&programs.node);
        command.arg(&programs.qwen).args(["serve", "--port", "0", "--no-web", "--max-sessions", "0", "--workspace"]);
        command.arg(&workspace).current_dir(&workspace).env_clear().env("HOME", &home).env("QWEN_SERVER_TOKEN", TOKEN);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // With the agent that it starts, so that both can be killed.
        let mut child = command.process_group(0).spawn()?;
        let started = now();
        loop {
            let printed = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
            if let Some(address) = printed.split("listening on http://").nth(1).and_then(|rest| rest.split(' ').next())
            {
                let address = address.parse()?;
                let side = Side { name: "qwen serve", pid: child.id(), address, token: TOKEN.into(), workspace };
                return Ok(Self { child, side });
            }
            if child.try_wait()?.is_some() || since(started) > READY_TIMEOUT {
                let _ = child.kill();
                return Err(format!("the published daemon is not ready: {printed}").into());
            }
            sleep(POLL).await;
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // The group has ended if its first process has, and then nothing is left to kill.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
