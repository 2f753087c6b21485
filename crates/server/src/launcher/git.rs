//! The system's git, told to trust nothing: no configuration but ours, no hooks, no submodules, no prompts, only the
//! protocols it is given, and a time to be done by. A credential reaches it through a file that a helper reads, never in an
//! address, an argument or its environment.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use ostler_protocol::{
    Failure, FailureKind,
    events::clip,
    redaction::Redactor,
    workspaces::{GitRef, GitWant},
};
use ostler_runner::Tail;
use tokio::{process::Command, time::timeout};

const MESSAGE_CHARS_MAX: usize = 300;

/// How to run it.
pub struct Git<'a> {
    pub protocols: &'a [String],
    pub timeout: Duration,
    /// For the servers of this address: its origin, and the file with `username=` and `password=`.
    pub credential: Option<(String, PathBuf)>,
    pub redactor: &'a Redactor,
}

impl Git<'_> {
    /// Brings what is wanted into the bare cache, where it is not there yet, and answers with its commit.
    pub async fn fetch(&self, cache: &Path, wanted: &GitRef, keep_as: &str) -> Result<String, Failure> {
        if !cache.join("HEAD").exists() {
            self.run(cache, &["init", "--quiet", "--bare", "--template="]).await?;
        }
        let name = match &wanted.want {
            GitWant::Commit(commit) if self.has(cache, commit).await => return Ok(commit.clone()),
            GitWant::Commit(commit) => commit,
            GitWant::Ref(name) => name,
        };
        let fetch = |refspec: String| async move {
            let quiet = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--"];
            self.run(cache, &[&quiet[..], &[&wanted.repo_url, &refspec]].concat()).await
        };
        let fetched = fetch(format!("+{name}:{keep_as}")).await;
        if let GitWant::Commit(commit) = &wanted.want {
            if fetched.is_err() {
                // Not every server hands out a commit by its id: then it must be among its branches.
                fetch(format!("+refs/heads/*:{keep_as}-heads/*")).await?;
            }
            return if self.has(cache, commit).await { Ok(commit.clone()) } else { Err(unknown()) };
        }
        fetched?;
        let commit = self.run(cache, &["rev-parse", "--verify", &format!("{keep_as}^{{commit}}")]).await?;
        Ok(commit.trim().to_owned())
    }

    async fn has(&self, cache: &Path, commit: &str) -> bool {
        self.run(cache, &["cat-file", "-e", &format!("{commit}^{{commit}}")]).await.is_ok()
    }

    /// A repository of its own at this commit. It shares nothing with the cache, which others use too.
    pub async fn check_out(&self, cache: &Path, commit: &str, into: &Path, keep_as: &str) -> Result<(), Failure> {
        self.run(cache, &["update-ref", keep_as, commit]).await?;
        let local = Git { protocols: &["file".to_owned()], credential: None, ..*self };
        local.run(into, &["init", "--quiet", "--template="]).await?;
        let cache_url = format!("file://{}", cache.display());
        let fetch =
            ["fetch", "--quiet", "--no-tags", "--depth=1", "--no-recurse-submodules", "--", &cache_url, keep_as];
        local.run(into, &fetch).await?;
        local.run(into, &["checkout", "--quiet", "--detach", "FETCH_HEAD"]).await?;
        self.run(cache, &["update-ref", "-d", keep_as]).await.map(drop)
    }

    async fn run(&self, directory: &Path, arguments: &[&str]) -> Result<String, Failure> {
        let mut child = self.command(directory, arguments).spawn().map_err(|error| failed(&error.to_string()))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(Failure::internal("the pipes were asked for"));
        };
        let whole = async { tokio::join!(Tail::read(stdout), Tail::read(stderr), child.wait()) };
        match timeout(self.timeout, whole).await {
            Err(_) => Err(failed(&format!("git {} took too long", arguments[0]))),
            Ok((said, _, Ok(status))) if status.success() => Ok(said.shown(self.redactor)),
            Ok((_, log, _)) => Err(refused(arguments[0], &log.shown(self.redactor))),
        }
    }

    fn command(&self, directory: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        let settings = [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "submodule.recurse=false",
            "http.followRedirects=false",
            "gc.auto=0",
            "maintenance.auto=false",
            "init.defaultBranch=main",
            "credential.helper=",
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        if let Some((origin, file)) = &self.credential {
            // For this origin only, and to read it only.
            let path = file.display().to_string().replace('\'', r"'\''");
            let helper = format!("!f() {{ test \"$1\" = get && cat '{path}'; }}; f");
            command.args(["-c", &format!("credential.{origin}.helper={helper}")]);
        }
        command.args(arguments).current_dir(directory).env_clear();
        // Where the authorities are that the system trusts, in git's words.
        let passed = [("PATH", "PATH"), ("SSL_CERT_FILE", "GIT_SSL_CAINFO"), ("SSL_CERT_DIR", "GIT_SSL_CAPATH")];
        command.envs(passed.iter().filter_map(|(ours, its)| Some((its, std::env::var_os(ours)?))));
        command.env("GIT_ALLOW_PROTOCOL", self.protocols.join(":")).env("GIT_TERMINAL_PROMPT", "0");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_LFS_SKIP_SMUDGE", "1");
        command.env("HOME", "/nonexistent").env("LC_ALL", "C").env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

fn failed(message: &str) -> Failure {
    Failure::rule(FailureKind::InfraFailed, "workspace-git", message)
}

fn unknown() -> Failure {
    Failure::rule(FailureKind::NotFound, "workspace-git-commit", "the repository has no such commit, branch or tag")
}

/// What git's words mean for the run. Only what another try could mend is tried again.
fn refused(verb: &str, log: &str) -> Failure {
    let says = |words: &[&str]| words.iter().any(|word| log.contains(word));
    if says(&["couldn't find remote ref", "not our ref", "Needed a single revision"]) {
        return unknown();
    }
    if says(&[
        "Authentication failed",
        "could not read Username",
        "could not read Password",
        "Permission denied (publickey",
    ]) {
        let message = "the repository wants a credential, or another one";
        return Failure::rule(FailureKind::SecretUnavailable, "workspace-git-credential", message);
    }
    if says(&["transport '"]) && says(&["not allowed"]) {
        return Failure::rule(
            FailureKind::TenantPolicyDenied,
            "workspace-git-protocol",
            "this protocol is not allowed",
        );
    }
    let last = log.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word");
    failed(&clip(&format!("git {verb} failed: {last}"), MESSAGE_CHARS_MAX))
}
