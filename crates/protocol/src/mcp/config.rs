//! The configuration of one MCP server: a program that is started, or the URL of one that runs elsewhere.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::json::canonical_hash;

/// Most servers that can be configured, and as many that callers can add.
pub const SERVERS_MAX: usize = 64;
/// Most bytes of a command, an argument, a path, a URL or a value.
const TEXT_BYTES_MAX: usize = 8 * 1024;
/// Most arguments, variables or headers of one server.
const ITEMS_MAX: usize = 64;
/// The longest that a server may take to answer a request: 10 minutes.
const TIMEOUT_MS_MAX: u64 = 600_000;
const TIMEOUT_MS: u64 = 60_000;

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpTransport {
    /// A process of ours, over its standard streams.
    Stdio,
    /// Streamable HTTP.
    Http,
}

/// Who calls the tools of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum McpExposure {
    /// This server, for every backend: calls are authorised and recorded here.
    #[default]
    Toolkit,
    /// Backends that can connect to MCP servers themselves. They get the credentials.
    Direct,
}

/// An MCP server: either `command` or `url`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct McpServer {
    /// The program to start. It is confined like an agent's.
    pub command: Option<String>,
    /// Its arguments. Other users of the machine can see them, so put no secrets here.
    pub args: Vec<String>,
    /// Its variables, in addition to the few that every program gets.
    pub env: BTreeMap<String, McpValue>,
    /// The directory it works in. By default the workspace.
    pub cwd: Option<String>,
    /// The URL of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// Headers of requests to `url`.
    pub headers: BTreeMap<String, McpValue>,
    /// Whether it is used.
    pub enabled: bool,
    /// How long it may take to start, and to answer a request.
    pub timeout_ms: u64,
    /// What clients show of it.
    pub description: Option<String>,
    /// `toolkit`: this server calls its tools, for every backend. `direct`: agents connect to it themselves, if they can.
    pub expose: McpExposure,
    /// Whether its statements that a tool only reads, or uses no network, count for runs that may only read or have no network.
    pub trust_hints: bool,
}

impl Default for McpServer {
    fn default() -> Self {
        Self {
            command: None,
            args: vec![],
            env: BTreeMap::new(),
            cwd: None,
            url: None,
            headers: BTreeMap::new(),
            enabled: true,
            timeout_ms: TIMEOUT_MS,
            description: None,
            expose: McpExposure::default(),
            trust_hints: false,
        }
    }
}

/// A value that may be a secret: the text itself, or where the server finds it when it connects.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum McpValue {
    /// The value of a variable of the server's environment: `{ env = "NAME" }`.
    Variable(VariableReference),
    /// The contents of a file without the white space at its ends: `{ file = "/run/secrets/name" }`.
    File(FileReference),
    #[schema(value_type = String)]
    Text(SecretString),
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VariableReference {
    pub env: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileReference {
    pub file: String,
}

/// References are shown as they are, and texts only by their presence.
impl Serialize for McpValue {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Variable(reference) => reference.serialize(output),
            Self::File(reference) => reference.serialize(output),
            Self::Text(_) => "(hidden)".serialize(output),
        }
    }
}

impl McpValue {
    /// All of it, for the fingerprint.
    fn exposed(&self) -> Value {
        match self {
            Self::Variable(reference) => json!({"env": reference.env}),
            Self::File(reference) => json!({"file": reference.file}),
            Self::Text(text) => text.expose_secret().into(),
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Variable(reference) => reference.env.len(),
            Self::File(reference) => reference.file.len(),
            Self::Text(text) => text.expose_secret().len(),
        }
    }
}

impl McpServer {
    /// How it is reached. A server that passed [`McpServer::check`] has exactly one of both.
    pub fn transport(&self) -> McpTransport {
        if self.command.is_some() { McpTransport::Stdio } else { McpTransport::Http }
    }

    /// What is wrong with it, without its values.
    pub fn check(&self) -> Result<(), String> {
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => return Err("has a command and a url; give one of them".into()),
            (None, None) => return Err("has neither a command nor a url".into()),
            (Some(command), None) if command.trim().is_empty() => return Err("has an empty command".into()),
            (Some(_), None) if !self.headers.is_empty() => return Err("has headers, which need a url".into()),
            (None, Some(_)) if !self.args.is_empty() || !self.env.is_empty() || self.cwd.is_some() => {
                return Err("has args, env or cwd, which need a command".into());
            }
            (None, Some(url)) if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) => {
                return Err("has a url that is not http or https".into());
            }
            _ => {}
        }
        if !(1..=TIMEOUT_MS_MAX).contains(&self.timeout_ms) {
            return Err(format!("has a timeout_ms that is not 1 to {TIMEOUT_MS_MAX}"));
        }
        if [self.args.len(), self.env.len(), self.headers.len()].iter().any(|items| *items > ITEMS_MAX) {
            return Err(format!("has more than {ITEMS_MAX} args, variables or headers"));
        }
        let texts = [&self.command, &self.cwd, &self.url, &self.description].into_iter().flatten().chain(&self.args);
        let names = self.env.keys().chain(self.headers.keys());
        let values = self.env.values().chain(self.headers.values()).map(McpValue::text_bytes);
        let sizes = texts.chain(names).map(String::len).chain(values);
        if sizes.into_iter().any(|bytes| bytes > TEXT_BYTES_MAX) {
            return Err(format!("has a text of more than {TEXT_BYTES_MAX} bytes"));
        }
        if self.cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/')) {
            return Err("has a cwd that is not an absolute path".into());
        }
        let is_variable = |name: &String| !name.is_empty() && !name.contains(['=', '\0']);
        if !self.env.keys().all(is_variable) {
            return Err("has a variable whose name cannot be used".into());
        }
        if let Some(name) = self.env.keys().find(|name| is_loader_variable(name)) {
            return Err(format!(
                "has the variable {name}, which would load code before the program is confined; \
                 hint: set it in a script, and give the script as the command"
            ));
        }
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !self.headers.keys().all(|name| !name.is_empty() && name.bytes().all(is_token)) {
            return Err("has a header whose name cannot be used".into());
        }
        Ok(())
    }

    /// Differs between configurations that need connections of their own. Derived from secrets, so it is not shown.
    pub fn fingerprint(&self) -> String {
        let values = |values: &BTreeMap<String, McpValue>| -> Value {
            values.iter().map(|(name, value)| (name.clone(), value.exposed())).collect()
        };
        canonical_hash(&json!({
            "command": self.command, "args": self.args, "env": values(&self.env), "cwd": self.cwd,
            "url": self.url, "headers": values(&self.headers), "timeout_ms": self.timeout_ms,
        }))
    }
}

/// Whether the dynamic loader reads the variable. The variables of a server are also those of the guard that confines it.
fn is_loader_variable(name: &str) -> bool {
    name.starts_with("LD_") || name == "GLIBC_TUNABLES"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(config: Value) -> McpServer {
        serde_json::from_value(config).unwrap()
    }

    #[test]
    fn a_server_is_a_command_or_a_url() {
        for good in [
            json!({"command": "x", "args": ["a"], "cwd": "/w", "env": {"LDAP_URL": "a", "BUILD_LD_PATH": "b"}}),
            json!({"url": "https://x/mcp"}),
        ] {
            assert_eq!(server(good).check(), Ok(()));
        }
        for (bad, expected) in [
            (json!({}), "neither"),
            (json!({"command": "x", "url": "http://y"}), "one of them"),
            (json!({"command": " "}), "empty command"),
            (json!({"command": "x", "headers": {"a": "b"}}), "need a url"),
            (json!({"url": "http://y", "env": {"a": "b"}}), "need a command"),
            (json!({"url": "ws://y"}), "not http"),
            (json!({"command": "x", "timeout_ms": 0}), "timeout_ms"),
            (json!({"command": "x", "cwd": "w"}), "absolute"),
            (json!({"command": "x", "env": {"A=B": "c"}}), "variable"),
            (json!({"command": "x", "env": {"LD_PRELOAD": "/tmp/a.so"}}), "the variable LD_PRELOAD"),
            (json!({"command": "x", "env": {"LD_AUDIT": {"env": "A"}}}), "the variable LD_AUDIT"),
            (json!({"command": "x", "env": {"GLIBC_TUNABLES": "a"}}), "the variable GLIBC_TUNABLES"),
            (json!({"url": "http://y", "headers": {"a b": "c"}}), "header"),
            (json!({"command": "x".repeat(TEXT_BYTES_MAX + 1)}), "bytes"),
            (json!({"command": "x", "args": vec!["a"; ITEMS_MAX + 1]}), "more than"),
        ] {
            let message = server(bad).check().unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn values_are_shown_by_presence_and_references_by_name() {
        let config = server(json!({"command": "x",
            "env": {"A": "pl4nted", "B": {"env": "TOKEN"}, "C": {"file": "/run/secret"}}}));
        let shown = serde_json::to_value(&config).unwrap();
        assert_eq!(shown["env"], json!({"A": "(hidden)", "B": {"env": "TOKEN"}, "C": {"file": "/run/secret"}}));
        assert!(!format!("{config:?}").contains("pl4nted"));
    }

    #[test]
    fn configurations_that_connect_differently_have_different_fingerprints() {
        let base = json!({"command": "x", "env": {"A": "1"}});
        let same = server(json!({"command": "x", "env": {"A": "1"}, "enabled": false, "description": "d"}));
        assert_eq!(server(base.clone()).fingerprint(), same.fingerprint());
        for other in [
            json!({"command": "y", "env": {"A": "1"}}),
            json!({"command": "x", "env": {"A": "2"}}),
            json!({"command": "x", "env": {"A": {"env": "1"}}}),
            json!({"command": "x", "env": {"A": "1"}, "args": ["-v"]}),
        ] {
            assert_ne!(server(base.clone()).fingerprint(), server(other).fingerprint());
        }
    }
}
