//! Workspaces: where an agent works, as a run's `workspaceRef` names it, and what the agent changed there. Only shapes are
//! judged here; whether a path is allowed and a commit exists is found out where the agent runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, RawJson, Rule,
    ids::{CommandId, RunId, slug},
    outgoing::is_host_name,
};

const URL_BYTES_MAX: usize = 2_048;
const REF_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 4_096;
/// Ways of reaching a repository that a server can be configured to allow. Others run programs of the caller's choice.
pub const GIT_PROTOCOLS: &[&str] = &["https", "http", "ssh", "git", "file"];

/// Where an agent works.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkspaceRef {
    /// An empty directory of its own.
    None,
    /// A directory of the machine, below one of the allowed roots.
    Local {
        path: String,
    },
    Git(GitRef),
}

#[derive(Clone, Debug, PartialEq)]
pub struct GitRef {
    pub repo_url: String,
    pub protocol: &'static str,
    /// `None`: the repository is a directory of the machine.
    pub server: Option<GitServer>,
    pub want: GitWant,
    /// The name of a credential that the server's operator has put down.
    pub credential_ref: Option<String>,
}

/// The server of a repository, as its URL names it.
#[derive(Clone, Debug, PartialEq)]
pub struct GitServer {
    /// A host name, or an address without brackets.
    pub host: String,
    pub port: Option<u16>,
    default_port: u16,
}

impl GitServer {
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(self.default_port)
    }

    /// Reads `user@host:port`, where user and port may be left out. Whatever git, curl and ssh could read in another way is
    /// refused: `None`.
    fn read(authority: &str, default_port: u16) -> Option<Self> {
        let (user, place) = authority.rsplit_once('@').map_or((None, authority), |(user, place)| (Some(user), place));
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if user.is_some_and(|user| user.is_empty() || user.starts_with('-') || !user.bytes().all(plain)) {
            return None;
        }
        let bracketed = place.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((address, rest)) => {
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (address, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
            }
            None => {
                let (host, port) = place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port)));
                let is_address = host.parse::<std::net::Ipv4Addr>().is_ok();
                if !is_address && (!is_host_name(host) || host.ends_with('.')) {
                    return None;
                }
                (host, port)
            }
        };
        let port = match port {
            None => None,
            Some(port) => Some(port.parse().ok().filter(|number: &u16| number.to_string() == port && *number > 0)?),
        };
        Some(Self { host: host.to_ascii_lowercase(), port, default_port })
    }
}

/// The fields that name a repository and something in it, as a request has them.
pub(crate) struct GitSource {
    pub repo_url: Option<String>,
    pub git_ref: Option<String>,
    pub commit_id: Option<String>,
    pub credential_ref: Option<String>,
}

impl GitRef {
    /// Checks the fields of a request. Messages name `field`, the object that has them.
    pub(crate) fn read(field: &str, source: GitSource) -> Result<Self, Failure> {
        let repo_url = source.repo_url.unwrap_or_default();
        let (protocol, server) = check_url(field, &repo_url)?;
        let want = match (source.commit_id, source.git_ref) {
            (Some(commit), None) => GitWant::Commit(check_commit(field, commit)?),
            (None, named) => GitWant::Ref(check_ref(field, named.unwrap_or_else(|| "HEAD".into()))?),
            (Some(_), Some(_)) => {
                let message = format!("{field} takes a ref or a commitId, not both");
                return Err(Failure::invalid(Rule::WorkspaceGitWant, message));
            }
        };
        if let Some(name) = &source.credential_ref {
            slug(&format!("{field}.credentialRef"), name)?;
        }
        Ok(Self { repo_url, protocol, server, want, credential_ref: source.credential_ref })
    }

    /// The repository's server as the URL names it, with its port if it has one.
    pub fn authority(&self) -> &str {
        &self.repo_url[self.protocol.len() + 3..self.path_start()]
    }

    /// Where the path begins in the URL.
    pub fn path_start(&self) -> usize {
        let start = self.protocol.len() + 3;
        self.repo_url[start..].find('/').map_or(self.repo_url.len(), |at| start + at)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum GitWant {
    Commit(String),
    /// A branch or tag; `HEAD` when none is named.
    Ref(String),
}

/// All fields of all kinds; fields that a kind does not have are stored and ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkspaceFields {
    kind: String,
    path: Option<String>,
    repo_url: Option<String>,
    #[serde(rename = "ref")]
    git_ref: Option<String>,
    commit_id: Option<String>,
    credential_ref: Option<String>,
}

impl WorkspaceRef {
    pub fn read(raw: &RawJson) -> Result<Self, Failure> {
        let shape = || Failure::invalid(Rule::WorkspaceRefShape, "workspaceRef must be an object with a string kind");
        let fields: WorkspaceFields = raw.view().ok_or_else(shape)?;
        match fields.kind.as_str() {
            "none" => Ok(Self::None),
            "local" => local(fields),
            "git" => git(fields).map(Self::Git),
            other => {
                let message = "workspaceRef.kind must be none, local or git";
                Err(Failure::invalid(Rule::WorkspaceKind, message).detail("kind", crate::text::clip(other, 80)))
            }
        }
    }
}

fn local(fields: WorkspaceFields) -> Result<WorkspaceRef, Failure> {
    let path = fields.path.unwrap_or_default();
    if !path.starts_with('/') || path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(Failure::invalid(Rule::WorkspacePath, "workspaceRef.path must be an absolute path"));
    }
    Ok(WorkspaceRef::Local { path })
}

fn git(fields: WorkspaceFields) -> Result<GitRef, Failure> {
    let WorkspaceFields { repo_url, git_ref, commit_id, credential_ref, .. } = fields;
    GitRef::read("workspaceRef", GitSource { repo_url, git_ref, commit_id, credential_ref })
}

fn check_url(field: &str, url: &str) -> Result<(&'static str, Option<GitServer>), Failure> {
    let shape = || {
        let message = format!("{field}.repoUrl must be a URL such as https://host.example/owner/repository.git");
        Failure::invalid(Rule::WorkspaceGitUrl, message)
    };
    let protocol = url.split_once("://").and_then(|(scheme, _)| GIT_PROTOCOLS.iter().find(|known| **known == scheme));
    let fits = url.len() <= URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic());
    let protocol = protocol.filter(|_| fits).ok_or_else(shape)?;
    let authority = url[protocol.len() + 3..].split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    // A user name alone belongs to the address of an ssh server.
    if user.is_some_and(|user| *protocol != "ssh" || user.contains(':')) {
        let message = format!("{field}.repoUrl must not hold a credential; name one with credentialRef");
        return Err(Failure::invalid(Rule::WorkspaceGitUrlCredential, message));
    }
    let default_port = match *protocol {
        "https" => 443,
        "http" => 80,
        "ssh" => 22,
        "git" => 9418,
        _ if authority.is_empty() => return Ok((protocol, None)),
        _ => return Err(shape()),
    };
    Ok((protocol, Some(GitServer::read(authority, default_port).ok_or_else(shape)?)))
}

fn check_commit(field: &str, commit: String) -> Result<String, Failure> {
    if [40, 64].contains(&commit.len()) && commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(commit.to_ascii_lowercase());
    }
    Err(Failure::invalid(Rule::WorkspaceGitCommitId, format!("{field}.commitId must be a whole commit id")))
}

fn check_ref(field: &str, name: String) -> Result<String, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-+".contains(&byte);
    let odd = name.is_empty() || name.starts_with(['-', '/', '+']) || name.contains("..") || name.contains("//");
    if odd || name.len() > REF_BYTES_MAX || !name.bytes().all(fits) {
        return Err(Failure::invalid(Rule::WorkspaceGitRef, format!("{field}.ref must be a branch or a tag")));
    }
    Ok(name)
}

/// What an agent changed in its workspace in one turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceChanges {
    pub files_changed: i64,
    /// In lines that are new, and in lines that are gone; a changed line is both.
    pub bytes_added: i64,
    pub bytes_removed: i64,
    /// Lines that are new, and lines that are gone; a changed line is both.
    pub lines_added: i64,
    pub lines_removed: i64,
    /// The first of them.
    pub files: Vec<ChangedFile>,
    /// A unified diff, or the beginning of one.
    pub diff: String,
    /// Not all of it is here.
    pub truncated: bool,
    /// What was changed could not be found out: an empty diff does not mean that nothing was.
    pub unknown: bool,
    /// Why it is unknown, and what to do about it; null where it is known.
    pub reason: Option<String>,
}

/// What a turn changed, with the states by which it can be undone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedChanges {
    #[serde(flatten)]
    pub changes: WorkspaceChanges,
    /// `None` if the states could not be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trees: Option<WorkspaceTrees>,
}

/// The workspace before a turn and after it, by the ids of trees that the runner has stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkspaceTrees {
    pub before: String,
    pub after: String,
}

impl WorkspaceChanges {
    /// Changes that could not be found out.
    pub fn unknown(reason: String) -> Self {
        Self { unknown: true, reason: Some(reason), ..Self::default() }
    }
}

/// The reason of changes whose text retention has removed.
pub const CHANGES_REMOVED: &str = "the changes were removed by retention";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangedFile {
    pub path: String,
    /// `added`, `modified` or `deleted`.
    pub change: String,
    pub bytes_added: i64,
    pub bytes_removed: i64,
    /// Its bytes are not counted.
    pub binary: bool,
}

/// What a command's agent changed, as the log has it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandDiff {
    pub run_id: RunId,
    pub command_id: CommandId,
    #[serde(flatten)]
    pub changes: WorkspaceChanges,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<WorkspaceRef, String> {
        WorkspaceRef::read(&RawJson::of(&value)).map_err(|failure| failure.rule_name().unwrap_or_default().to_owned())
    }

    #[test]
    fn each_kind_has_its_shape() {
        assert_eq!(read(json!({"kind": "none", "more": 1})), Ok(WorkspaceRef::None));
        assert_eq!(read(json!({"kind": "local", "path": "/a"})), Ok(WorkspaceRef::Local { path: "/a".into() }));
        let git = read(json!({"kind": "git", "repoUrl": "https://host.example/a/b.git"})).unwrap();
        let WorkspaceRef::Git(git) = git else { panic!("{git:?}") };
        assert_eq!((git.protocol, git.want), ("https", GitWant::Ref("HEAD".into())));
        for (wrong, rule) in [
            (json!({"kind": "moon"}), "workspace-kind"),
            (json!({"kind": 7}), "workspace-ref-shape"),
            (json!({"kind": "local"}), "workspace-path"),
            (json!({"kind": "local", "path": "a/b"}), "workspace-path"),
        ] {
            assert_eq!(read(wrong.clone()), Err(rule.into()), "{wrong}");
        }
    }

    #[test]
    fn nothing_in_a_git_reference_can_run_a_program_or_hold_a_credential() {
        let git = |field: &str, value: &str| {
            let mut body = json!({"kind": "git", "repoUrl": "https://host.example/a"});
            body[field] = value.into();
            read(body).map(drop)
        };
        let broken = |field: &str, value: &str| git(field, value).unwrap_err();
        for url in [
            "ext::sh -c id",
            "fd::7",
            "-u",
            "--upload-pack=id",
            "git@host:a",
            "transport::x",
            "/etc",
            "https://a b",
            "",
            // What git, curl or ssh could read in another way than the check does.
            "https://",
            "https:///a",
            "https://-host/a",
            "ssh://-oProxyCommand=id/a",
            "ssh://-u@host/a",
            "https://host.example\\.evil.example/a",
            "https://host.example?.evil.example/a",
            "https://host.example#.evil.example/a",
            "https://host.example%2eevil.example/a",
            "https://2130706433/a",
            "https://0x7f.1/a",
            "https://127.1/a",
            "https://0177.0.0.1/a",
            "https://host.example./a",
            "https://[::1/a",
            "https://[fe80::1%25eth0]/a",
            "https://host.example:/a",
            "https://host.example:0443/a",
            "https://host.example:99999/a",
            "https://host.example:80:81/a",
            "file://host.example/a",
        ] {
            assert_eq!(broken("repoUrl", url), "workspace-git-url", "{url}");
        }
        for url in ["https://me:secret@host/a", "https://token@host/a", "ssh://git:secret@host/a"] {
            assert_eq!(broken("repoUrl", url), "workspace-git-url-credential", "{url}");
        }
        for url in
            ["ssh://git@host/a", "https://host.example:8443/a", "https://[2001:db8::1]:8443/a", "https://8.8.8.8/a"]
        {
            assert_eq!(git("repoUrl", url), Ok(()), "{url}");
        }
        for name in ["-b", "--exec", "a..b", "a b", "a:b", "", "/a", "+a"] {
            assert_eq!(broken("ref", name), "workspace-git-ref", "{name}");
        }
        assert_eq!(git("ref", "refs/heads/feature/x-1.2"), Ok(()));
        for commit in ["abc", "-", &"g".repeat(40)] {
            assert_eq!(broken("commitId", commit), "workspace-git-commit-id", "{commit}");
        }
        assert_eq!(git("commitId", &"a".repeat(40)), Ok(()));
    }
}
