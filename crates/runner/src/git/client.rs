//! The system's git, configured to trust nothing: no configuration except ours, no hooks, no submodules, no prompts, only the
//! allowed protocols, only checked addresses, and a deadline. A credential reaches it through a file that a helper reads,
//! never in a URL, an argument or its environment.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use ostler_protocol::{
    Failure, Rule,
    kernel::workspaces::{GitRef, GitWant},
    outgoing::OutgoingRules,
    redaction::Redactor,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    sync::OnceCell,
    time::timeout,
};

use super::{missing::git_missing, route::Route};
use crate::log_tail::LogTail;

/// The first version of git that accepts the addresses of a host name (`http.curloptResolve`).
const PINNING_VERSION: (u32, u32) = (2, 37);
/// One message for every failure of a connection, so that it does not reveal which hosts and ports respond. The log has the
/// details.
const FETCH_FAILED: &str = "the repository could not be fetched; check repoUrl, and credentialRef if it is private";

/// How a ref is fetched, up to the options that differ.
const FETCH: [&str; 5] = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"];
/// Bytes of git's output that are read.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;

/// What git wrote to its standard output. It is data for us, so it is neither redacted nor logged.
struct GitOutput {
    text: String,
    /// Whether there was more.
    is_cut: bool,
}

impl GitOutput {
    async fn read(from: impl AsyncRead + Unpin) -> Self {
        let mut bytes = vec![];
        // An output that breaks off comes with a bad exit status.
        let _ = from.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes).await;
        let is_cut = bytes.len() as u64 > OUTPUT_BYTES_MAX;
        Self { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut }
    }
}

/// How to run it.
pub struct Git<'a> {
    pub protocols: &'a [String],
    pub timeout: Duration,
    /// The addresses that it may connect to.
    pub outgoing: &'a OutgoingRules,
    /// For the servers of this address: its origin, and the file with `username=` and `password=`.
    pub credential: Option<(String, PathBuf)>,
    pub redactor: &'a Redactor,
}

impl Git<'_> {
    /// Fetches the requested ref into the bare cache, unless it is there already, and returns its commit.
    pub async fn fetch(&self, cache: &Path, wanted: &GitRef, keep_as: &str) -> Result<String, Failure> {
        self.init(cache).await?;
        let name = match &wanted.want {
            GitWant::Commit(commit) if self.has(cache, commit).await => return Ok(commit.clone()),
            GitWant::Commit(commit) => commit,
            GitWant::Ref(name) => name,
        };
        let route = self.route(wanted).await?;
        match self.fetch_by(&route, cache, wanted, name, keep_as).await {
            Err(failure)
                if failure.broken_rule() == Some(Rule::WorkspaceGitCommit) && !self.lists_refs(&route, cache).await =>
            {
                Err(failed(FETCH_FAILED))
            }
            fetched => fetched,
        }
    }

    /// As [`Git::fetch`], for a repository that is used once: only the requested commit, without its history, if the server serves
    /// it by its id.
    pub async fn fetch_shallow(&self, repository: &Path, wanted: &GitRef, keep_as: &str) -> Result<String, Failure> {
        if let GitWant::Commit(commit) = &wanted.want {
            self.init(repository).await?;
            let route = self.route(wanted).await?;
            let refspec = format!("+{commit}:{keep_as}");
            let fetch = [&FETCH[..], &["--depth=1", "--", &route.url, &refspec]].concat();
            if self.run_by(&route, repository, &fetch).await.is_ok() && self.has(repository, commit).await {
                return Ok(commit.clone());
            }
        }
        self.fetch(repository, wanted, keep_as).await
    }

    async fn init(&self, repository: &Path) -> Result<(), Failure> {
        if !repository.join("HEAD").exists() {
            self.run(repository, &["init", "--quiet", "--bare", "--template="]).await?;
        }
        Ok(())
    }

    /// The commit that the requested ref names at this moment. Fetches nothing. All of it takes at most [`Git::timeout`].
    pub async fn resolve(&self, directory: &Path, wanted: &GitRef) -> Result<String, Failure> {
        timeout(self.timeout, self.look_up(directory, wanted)).await.unwrap_or_else(|_| {
            tracing::warn!(host = wanted.authority(), "looking up a ref of a repository took too long");
            Err(failed(FETCH_FAILED))
        })
    }

    async fn look_up(&self, directory: &Path, wanted: &GitRef) -> Result<String, Failure> {
        let name = match &wanted.want {
            GitWant::Commit(commit) => return Ok(commit.clone()),
            GitWant::Ref(name) => name,
        };
        let route = self.route(wanted).await?;
        let names = full_names(name);
        let arguments: Vec<&str> =
            ["ls-remote", "--quiet", "--", &route.url].into_iter().chain(names.iter().map(String::as_str)).collect();
        let listed = self.run_by(&route, directory, &arguments).await?;
        if let Some(commit) = find_commit(&listed, &names) {
            return Ok(commit.to_owned());
        }
        Err(if self.lists_refs(&route, directory).await { unknown() } else { failed(FETCH_FAILED) })
    }

    /// Whether the server lists any ref. A web server that responds to every path looks like a repository without refs; a
    /// caller must not be able to distinguish it from an address where nothing responds.
    async fn lists_refs(&self, route: &Route, cache: &Path) -> bool {
        let refs = self.capture(route, cache, &["ls-remote", "--quiet", "--", &route.url]).await;
        refs.is_ok_and(|refs| refs.is_cut || !refs.text.trim().is_empty())
    }

    async fn fetch_by(
        &self,
        route: &Route,
        cache: &Path,
        wanted: &GitRef,
        name: &str,
        keep_as: &str,
    ) -> Result<String, Failure> {
        let fetch = |refspec: String| async move {
            self.run_by(route, cache, &[&FETCH[..], &["--", &route.url, &refspec]].concat()).await
        };
        let fetched = fetch(format!("+{name}:{keep_as}")).await;
        if let GitWant::Commit(commit) = &wanted.want {
            if fetched.is_err() {
                // Not every server serves a commit by its id; then it must be on one of the branches.
                fetch(format!("+refs/heads/*:{keep_as}-heads/*")).await?;
            }
            return if self.has(cache, commit).await { Ok(commit.clone()) } else { Err(unknown()) };
        }
        fetched?;
        let commit = self.run(cache, &["rev-parse", "--verify", &format!("{keep_as}^{{commit}}")]).await?;
        Ok(commit.trim().to_owned())
    }

    async fn route(&self, wanted: &GitRef) -> Result<Route, Failure> {
        let route = Route::find(self.outgoing, wanted).await.map_err(|error| {
            let host = wanted.server.as_ref().map(|server| server.host.as_str());
            tracing::warn!(%error, host, "a repository's server may not be connected to, or is unknown");
            failed(FETCH_FAILED)
        })?;
        if route.setting.is_some() && version().await.is_none_or(|version| version < PINNING_VERSION) {
            return Err(failed("git 2.37 or newer is needed to fetch repositories"));
        }
        Ok(route)
    }

    async fn has(&self, cache: &Path, commit: &str) -> bool {
        self.run(cache, &["cat-file", "-e", &format!("{commit}^{{commit}}")]).await.is_ok()
    }

    /// Checks out this commit in its own repository, which shares nothing with the cache, because other runs use the cache too.
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

    /// The sizes in bytes of all files of a path at a commit. Empty if there is no such path. `None` if there are too many to list.
    pub async fn list_sizes(&self, cache: &Path, commit: &str, path: &str) -> Result<Option<Vec<u64>>, Failure> {
        let list = ["ls-tree", "-r", "--format=%(objectsize)", commit, "--", path];
        let listed = self.capture(&Route::default(), cache, &list).await?;
        // A submodule has no size, and none of its files are fetched.
        let sizes = listed.text.lines().map(|size| size.trim().parse().unwrap_or(0)).collect();
        Ok((!listed.is_cut).then_some(sizes))
    }

    /// Checks out these paths of a commit in a directory that is no repository.
    pub async fn check_out_paths(
        &self,
        cache: &Path,
        commit: &str,
        into: &Path,
        paths: &[&str],
    ) -> Result<(), Failure> {
        let work_tree = format!("--work-tree={}", into.display());
        let check_out = ["--literal-pathspecs", &work_tree, "checkout", "--quiet", commit, "--"];
        self.run(cache, &[&check_out[..], paths].concat()).await.map(drop)
    }

    async fn run(&self, directory: &Path, arguments: &[&str]) -> Result<String, Failure> {
        self.run_by(&Route::default(), directory, arguments).await
    }

    async fn run_by(&self, route: &Route, directory: &Path, arguments: &[&str]) -> Result<String, Failure> {
        let output = self.capture(route, directory, arguments).await?;
        if output.is_cut { Err(failed("git wrote more than expected")) } else { Ok(output.text) }
    }

    async fn capture(&self, route: &Route, directory: &Path, arguments: &[&str]) -> Result<GitOutput, Failure> {
        let verb = arguments.iter().find(|argument| !argument.starts_with("--")).copied().unwrap_or_default();
        let mut child = self.command(route, directory, arguments).spawn().map_err(|error| not_started(&error))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(Failure::internal("the child process has no pipes"));
        };
        let whole = async { tokio::join!(GitOutput::read(stdout), LogTail::read(stderr), child.wait()) };
        match timeout(self.timeout, whole).await {
            Err(_) => Err(self.refused(verb, "it took too long")),
            // Git fails when nothing reads the rest of its output.
            Ok((output, _, _)) if output.is_cut => Ok(output),
            Ok((output, _, Ok(status))) if status.success() => Ok(output),
            Ok((_, log, _)) => Err(self.refused(verb, &log.redacted(self.redactor))),
        }
    }

    /// The failure for git's error output. Only failures that a retry could fix are retryable.
    fn refused(&self, verb: &str, log: &str) -> Failure {
        let log_has = |words: &[&str]| words.iter().any(|word| log.contains(word));
        if log_has(&["couldn't find remote ref", "not our ref", "Needed a single revision"]) {
            return unknown();
        }
        let denied = ["Authentication failed", "could not read Username", "could not read Password"];
        // Without a credential it is reported like any other failed connection.
        if self.credential.is_some() && log_has(&denied) {
            let message = "the repository requires another credential";
            return Failure::rule(Rule::WorkspaceGitCredential, message);
        }
        if log_has(&["transport '"]) && log_has(&["not allowed"]) {
            let message = "this protocol is not allowed";
            return Failure::rule(Rule::WorkspaceGitProtocol, message);
        }
        tracing::warn!(verb, log, "git failed");
        if matches!(verb, "fetch" | "ls-remote") {
            failed(FETCH_FAILED)
        } else {
            failed(&format!("git {verb} failed; the log has its output"))
        }
    }

    fn command(&self, route: &Route, directory: &Path, arguments: &[&str]) -> Command {
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
            // A server may name other servers to fetch bundles from.
            "transfer.bundleURI=false",
        ];
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        command.args(route.setting.iter().flat_map(|setting| ["-c", setting]));
        if let Some((origin, file)) = &self.credential {
            // The credential is used for this origin only, and only read.
            let path = file.display().to_string().replace('\'', r"'\''");
            let helper = format!("!f() {{ test \"$1\" = get && grep -E '^(username|password)=' '{path}'; }}; f");
            command.args(["-c", &format!("credential.{origin}.helper={helper}")]);
        }
        command.args(arguments).current_dir(directory).env_clear();
        // The certificate authorities that the system trusts, as git names them.
        let passed = [("PATH", "PATH"), ("SSL_CERT_FILE", "GIT_SSL_CAINFO"), ("SSL_CERT_DIR", "GIT_SSL_CAPATH")];
        command.envs(passed.iter().filter_map(|(ours, its)| Some((its, std::env::var_os(ours)?))));
        command.env("GIT_ALLOW_PROTOCOL", self.protocols.join(":")).env("GIT_TERMINAL_PROMPT", "0");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_LFS_SKIP_SMUDGE", "1");
        // Without a route, git must not connect to anything.
        let ssh = route.ssh.as_deref().unwrap_or("false");
        command.env("HOME", "/nonexistent").env("LC_ALL", "C").env("GIT_SSH_COMMAND", ssh);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }
}

fn failed(message: &str) -> Failure {
    Failure::rule(Rule::WorkspaceGit, message)
}

/// Names git if it is missing: the system's error only reports that there is no such file.
fn not_started(error: &std::io::Error) -> Failure {
    match git_missing() {
        Some(why) => Failure::rule(Rule::WorkspaceGitMissing, why),
        None => failed(&format!("git could not be started: {error}")),
    }
}

fn unknown() -> Failure {
    Failure::rule(Rule::WorkspaceGitCommit, "the repository has no such commit, branch or tag")
}

/// The names that a ref may have at its server, the most important first, as git itself looks them up. A name with `^{}` is used
/// for the commit of an annotated tag.
fn full_names(name: &str) -> Vec<String> {
    match name {
        "HEAD" => vec![name.to_owned()],
        _ if name.starts_with("refs/") => vec![format!("{name}^{{}}"), name.to_owned()],
        _ => vec![format!("refs/tags/{name}^{{}}"), format!("refs/tags/{name}"), format!("refs/heads/{name}")],
    }
}

/// The id that a list of `ls-remote` has for the first of these names. The list may also have names that only end like them.
fn find_commit<'a>(listed: &'a str, names: &[String]) -> Option<&'a str> {
    let is_id = |id: &str| [40, 64].contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let rows: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once('\t')).collect();
    let find = |name: &String| rows.iter().find(|(id, found)| *found == name.as_str() && is_id(id)).map(|(id, _)| *id);
    names.iter().find_map(find)
}

/// The version of the system's git, looked up once. `None` if it reports none.
async fn version() -> Option<(u32, u32)> {
    static VERSION: OnceCell<Option<(u32, u32)>> = OnceCell::const_new();
    let look = || async {
        let output = Command::new("git").arg("version").kill_on_drop(true).output();
        let output = timeout(Duration::from_secs(10), output).await.ok()?.ok()?;
        read_version(&String::from_utf8_lossy(&output.stdout))
    };
    *VERSION.get_or_init(look).await
}

fn read_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    /// Serves the files below a directory for git's dumb protocol, and counts connections.
    async fn serve(root: PathBuf) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, count) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
        let counted = count.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let path = request.split_whitespace().nth(1).unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
                let file = std::fs::read(root.join(path.trim_start_matches('/')));
                let status = if file.is_ok() { "200 OK" } else { "404 Not Found" };
                let body = file.unwrap_or_default();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
            }
        });
        (port, count)
    }

    fn own(directory: &Path, arguments: &[&str]) {
        let author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let mut git = std::process::Command::new("git");
        let output = git.args(author).args(arguments).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn wanted(url: String) -> GitRef {
        let raw = ostler_protocol::RawJson::of(&serde_json::json!({"kind": "git", "repoUrl": url, "ref": "main"}));
        match ostler_protocol::kernel::workspaces::WorkspaceRef::read(&raw).unwrap() {
            ostler_protocol::kernel::workspaces::WorkspaceRef::Git(wanted) => wanted,
            other => panic!("{other:?}"),
        }
    }

    /// `pinned.invalid` does not resolve: git reaches the server only by the address that is configured for the name.
    #[tokio::test]
    async fn git_connects_to_the_address_that_it_is_given_for_a_name() {
        let scratch = tempfile::tempdir().unwrap();
        let (port, reached) = serve(scratch.path().to_owned()).await;
        let (protocols, outgoing, redactor) = (["http".to_owned()], OutgoingRules::default(), Redactor::new(&[]));
        let timeout = Duration::from_secs(30);
        let git = Git { protocols: &protocols, timeout, outgoing: &outgoing, credential: None, redactor: &redactor };
        let url = format!("http://pinned.invalid:{port}/a.git");
        let setting = Some(format!("http.curloptResolve=pinned.invalid:{port}:127.0.0.1"));
        for (setting, connects) in [(None, false), (setting, true)] {
            let route = Route { url: url.clone(), setting, ssh: None };
            git.run_by(&route, scratch.path(), &["ls-remote", &url]).await.unwrap_err();
            assert_eq!(reached.load(Ordering::SeqCst) > 0, connects);
        }
    }

    /// A repository may refer to objects on another server, whose address was not checked.
    #[tokio::test]
    async fn git_does_not_follow_a_repository_to_another_server() {
        let scratch = tempfile::tempdir().unwrap();
        let (work, web, inner) =
            (scratch.path().join("work"), scratch.path().join("web"), scratch.path().join("inner"));
        for folder in [&work, &web, &inner] {
            std::fs::create_dir(folder).unwrap();
        }
        own(&work, &["init", "--quiet", "--initial-branch=main"]);
        own(&work, &["commit", "--quiet", "--allow-empty", "-m", "one"]);
        own(scratch.path(), &["clone", "--quiet", "--bare", "--no-local", "work", "web/a.git"]);
        own(&web.join("a.git"), &["update-server-info"]);
        std::fs::rename(web.join("a.git/objects"), inner.join("objects")).unwrap();
        let (inside, reached) = serve(inner).await;
        std::fs::create_dir_all(web.join("a.git/objects/info")).unwrap();
        let elsewhere = format!("http://127.0.0.1:{inside}/objects\n");
        std::fs::write(web.join("a.git/objects/info/http-alternates"), elsewhere).unwrap();
        let (port, requests) = serve(web).await;
        let (protocols, redactor) = (["http".to_owned()], Redactor::new(&[]));
        let outgoing = OutgoingRules::default().with_loopback();
        let timeout = Duration::from_secs(30);
        let git = Git { protocols: &protocols, timeout, outgoing: &outgoing, credential: None, redactor: &redactor };
        let cache = scratch.path().join("cache");
        std::fs::create_dir(&cache).unwrap();
        let failure = git.fetch(&cache, &wanted(format!("http://127.0.0.1:{port}/a.git")), "refs/x").await.unwrap_err();
        assert_eq!(failure.message, FETCH_FAILED);
        assert!(requests.load(Ordering::SeqCst) > 0);
        assert_eq!(reached.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_ref_is_found_by_its_whole_name_and_a_tag_by_its_commit() {
        let id = |digit: &str| digit.repeat(40);
        let listed = format!(
            "{}\trefs/heads/main\n{}\trefs/heads/x/refs/heads/main\n{}\trefs/tags/v1\n{}\trefs/tags/v1^{{}}\nbad\trefs/heads/b",
            id("a"),
            id("b"),
            id("c"),
            id("d")
        );
        let find = |name: &str| find_commit(&listed, &full_names(name)).map(|found| found[..1].to_owned());
        assert_eq!(find("main").as_deref(), Some("a"));
        assert_eq!(find("refs/heads/main").as_deref(), Some("a"));
        assert_eq!(find("v1").as_deref(), Some("d"));
        assert_eq!((find("b"), find("HEAD"), find("absent")), (None, None, None));
    }

    #[test]
    fn the_version_of_git_is_read_from_its_output() {
        assert_eq!(read_version("git version 2.47.3\n"), Some((2, 47)));
        assert_eq!(read_version("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert_eq!(read_version("git version 3.0"), Some((3, 0)));
        assert_eq!((read_version("hg 5"), read_version("")), (None, None));
    }
}
