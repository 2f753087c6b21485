//! Which server to talk to and which token to use: from flags, the environment, a context, or by default, in this order. A
//! token is read, passed to the client and never printed; there is no flag for it, because a command line is visible to
//! every process of the machine.

use std::{
    ffi::OsString,
    fmt,
    io::ErrorKind,
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use ostler_client::Client;
use ostler_protocol::{Failure, FailureKind, limits::USER_TOKEN_BYTES_MAX};
use ostler_server::config::DEFAULT_LISTEN;
use secrecy::SecretString;

use crate::{
    context_file::{self, ConnectionContext, Contexts},
    environment, errors,
    terminal::shell_words::quoted,
};

const SERVER_VARIABLE: &str = "OSTLER_SERVER";
/// The name that the published run manager gives to runners for the same purpose. [`SERVER_VARIABLE`] wins. Only
/// [`Connection::for_runner`] reads it: any other command would send its token to the server of that manager.
const MANAGER_VARIABLE: &str = "AGENTRUN_MANAGER_URL";
const CONTEXT_VARIABLE: &str = "OSTLER_CONTEXT";
const DATA_DIR_VARIABLE: &str = "OSTLER_DATA_DIR";
const TENANT_VARIABLE: &str = "OSTLER_TENANT";
const TOKEN_VARIABLE: &str = "OSTLER_TOKEN";
const TOKEN_FILE: &str = "token";
/// Certificate authorities of servers, beside those of the system.
const CA_FILE_VARIABLE: &str = "OSTLER_CA_FILE";

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The server to talk to [env: OSTLER_SERVER] [default: http://127.0.0.1:4747]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "context")]
    server: Option<String>,
    /// The context to use: a server and its token under a name [env: OSTLER_CONTEXT]
    #[arg(long, global = true, value_name = "NAME", add = clap_complete::ArgValueCompleter::new(context_file::candidates))]
    context: Option<String>,
    /// The server's data directory, where its `token` file is [env: OSTLER_DATA_DIR]
    ///
    /// By default $XDG_DATA_HOME/ostler or ~/.local/share/ostler. The file is only used for a server on this machine; for
    /// another one, set OSTLER_TOKEN or use a context with a token file.
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the causes of lost connections and of failed calls
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Whether [`MANAGER_VARIABLE`] can name the server.
    #[arg(skip)]
    reads_manager_variable: bool,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueOrigin {
    Flag(&'static str),
    Variable(&'static str),
    Context(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Context(name) => write!(f, "context {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConnectionSetting<T> {
    pub value: T,
    pub origin: ValueOrigin,
}

/// The result of flags, environment and contexts together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub context: Option<ConnectionSetting<String>>,
    pub server: ConnectionSetting<String>,
    /// `None` if there is no home directory.
    pub data_dir: Option<ConnectionSetting<PathBuf>>,
    /// The tenant of new work. `None` if it is not configured; the server chooses it then.
    pub tenant: Option<ConnectionSetting<String>>,
    /// Where the token is read from. `None` if there is no token.
    pub token: Option<ValueOrigin>,
}

impl Settings {
    /// The server if it was named for this call, and is not merely the default or current one.
    pub(crate) fn named_server(&self) -> Option<String> {
        let named = match &self.server.origin {
            ValueOrigin::Default => false,
            ValueOrigin::Context(_) => {
                self.context.as_ref().is_some_and(|context| context.origin != ValueOrigin::Default)
            }
            _ => true,
        };
        named.then(|| self.server.value.clone())
    }
}

impl Connection {
    /// The connection of a runner, which a run manager may have started with its own variables.
    pub(crate) fn for_runner(&self) -> Self {
        Self { reads_manager_variable: true, ..self.clone() }
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let settings = self.settings()?;
        let (server, token) = (&settings.server.value, token(&settings)?);
        match environment::current().get(CA_FILE_VARIABLE).filter(|path| !path.is_empty()) {
            None => Client::http(server, token),
            Some(path) => {
                let authorities = std::fs::read(&path).map_err(|error| {
                    let message = format!("cannot read {}: {error}", Path::new(&path).display());
                    errors::usage(
                        message,
                        format!("{CA_FILE_VARIABLE} names a file of certificate authorities, in PEM"),
                    )
                })?;
                Client::http_with_authorities(server, token, &authorities)
            }
        }
    }

    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        let environment = environment::current();
        self.resolve(&Contexts::load()?, |name| environment.get(name).filter(|value| !value.is_empty()))
    }

    /// Names the source of the token in a failure of a server that rejects it.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let is_rejected = failure.kind == FailureKind::Unauthenticated && failure.broken_rule().is_none();
        let origin = self.settings().ok().and_then(|settings| settings.token);
        match origin.filter(|_| is_rejected && !errors::has_hint(&failure)) {
            None => failure,
            Some(origin) => {
                let message = format!("{} ({origin})", failure.message);
                errors::with_hint(Failure { message, ..failure }, better_token(&origin))
            }
        }
    }

    /// The tenant of new work: the flag's, else the configured one, else the one that the server chooses for the token. `None`
    /// if it chooses none; it rejects work without a tenant.
    pub(crate) async fn tenant(&self, flag: Option<&str>) -> Result<Option<String>, Failure> {
        let configured = match flag {
            Some(tenant) => Some(tenant.to_owned()),
            None => self.settings()?.tenant.map(|tenant| tenant.value),
        };
        match configured {
            Some(tenant) => Ok(Some(tenant)),
            None => Ok(self.client()?.caller().await?.default_tenant),
        }
    }

    /// A context is used whole or not at all: a server named by itself never receives a context's token.
    fn resolve(&self, all: &Contexts, env: impl Fn(&str) -> Option<OsString>) -> Result<Settings, Failure> {
        let variable = |name: &'static str| {
            let value = env(name)?.into_string().ok()?;
            Some(ConnectionSetting { value, origin: ValueOrigin::Variable(name) })
        };
        let flag = |value: &Option<String>, name| {
            let value = value.clone().filter(|value| !value.is_empty())?;
            Some(ConnectionSetting { value, origin: ValueOrigin::Flag(name) })
        };
        let by_manager = || if self.reads_manager_variable { variable(MANAGER_VARIABLE) } else { None };
        let by_variable = || variable(SERVER_VARIABLE).or_else(by_manager);
        let server = flag(&self.server, "--server");
        let named = flag(&self.context, "--context");
        let alone = server.is_some() || (named.is_none() && by_variable().is_some());
        let current = || all.current.clone().map(|value| ConnectionSetting { value, origin: ValueOrigin::Default });
        let name = if alone { None } else { named.or_else(|| variable(CONTEXT_VARIABLE)).or_else(current) };
        let context = name.as_ref().map(|name| all.get(&name.value)).transpose()?;
        let of_context = || ValueOrigin::Context(name.as_ref().map(|name| name.value.clone()).unwrap_or_default());

        let default = ConnectionSetting { value: format!("http://{DEFAULT_LISTEN}"), origin: ValueOrigin::Default };
        let server = match context {
            Some(context) => ConnectionSetting { value: context.server.clone(), origin: of_context() },
            None => server.or_else(by_variable).unwrap_or(default),
        };
        let data_dir = self
            .data_dir_of(context, &env)
            .map(|(value, origin)| ConnectionSetting { value, origin: origin.unwrap_or_else(of_context) });
        let tenant = context.and_then(|context| context.tenant.clone());
        let tenant = tenant.map(|value| ConnectionSetting { value, origin: of_context() });
        let tenant = tenant.or_else(|| variable(TENANT_VARIABLE));
        let token = match context.and_then(|context| context.token_file.clone()) {
            Some(file) => Some(ValueOrigin::File(file)),
            None if env(TOKEN_VARIABLE).is_some() => Some(ValueOrigin::Variable(TOKEN_VARIABLE)),
            None if is_loopback(&server.value) => {
                data_dir.as_ref().map(|dir| ValueOrigin::File(dir.value.join(TOKEN_FILE)))
            }
            None => None,
        };
        Ok(Settings { context: name, server, data_dir, tenant, token })
    }

    /// The data directory and its origin. An origin of `None` is the context.
    fn data_dir_of(
        &self,
        context: Option<&ConnectionContext>,
        env: &impl Fn(&str) -> Option<OsString>,
    ) -> Option<(PathBuf, Option<ValueOrigin>)> {
        if let Some(dir) = self.data_dir_flag() {
            return Some((dir.clone(), Some(ValueOrigin::Flag("--data-dir"))));
        }
        if let Some(dir) = context.and_then(|context| context.data_dir.clone()) {
            return Some((dir, None));
        }
        if let Some(dir) = env(DATA_DIR_VARIABLE) {
            return Some((dir.into(), Some(ValueOrigin::Variable(DATA_DIR_VARIABLE))));
        }
        default_data_dir(env("XDG_DATA_HOME"), env("HOME")).map(|dir| (dir, Some(ValueOrigin::Default)))
    }

    /// Whether causes are printed too.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// The flag that names a server, if one was given.
    pub(crate) fn remote_flag(&self) -> Option<&'static str> {
        let is_given = |value: &Option<String>| value.as_ref().is_some_and(|value| !value.is_empty());
        is_given(&self.server).then_some("--server").or(is_given(&self.context).then_some("--context"))
    }

    pub(crate) fn server_flag(&self) -> Option<&str> {
        self.server.as_deref().filter(|server| !server.is_empty())
    }

    pub(crate) fn data_dir_flag(&self) -> Option<&PathBuf> {
        self.data_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// How to invoke `ostler` again so that it reaches the same server, for suggested commands. What the environment sets
    /// is not repeated: the shell that a command is copied into has the same one. An address with a password in it is
    /// omitted.
    pub(crate) fn invocation(&self) -> String {
        let server = self.server_flag().map(str::to_owned).filter(|server| !server.contains('@'));
        let target = match &self.context {
            Some(name) => Some(("--context", name.clone())),
            None => server.map(|server| ("--server", server)),
        };
        invocation_with(target, self.data_dir_flag().map(PathBuf::as_path))
    }
}

/// How to invoke `ostler` so that it reaches a server of this machine, whose data directory may be the default one.
pub(crate) fn invocation_of_server(address: &str, data_dir: &Path) -> String {
    let default = default_data_dir(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME"));
    let data_dir = Some(data_dir).filter(|dir| default.as_deref() != Some(*dir));
    invocation_with(Some(("--server", address.to_owned())), data_dir)
}

fn invocation_with(target: Option<(&str, String)>, data_dir: Option<&Path>) -> String {
    let mut out = String::from("ostler");
    if let Some((flag, value)) = target {
        out.push_str(&format!(" {flag} {}", quoted(&value)));
    }
    if let Some(dir) = data_dir {
        out.push_str(&format!(" --data-dir {}", quoted(&dir.to_string_lossy())));
    }
    out
}

/// Reads the token. A missing file in the data directory is not a failure: the server may not require a token, and rejects
/// the call if it does. A missing file that a context names is a failure.
fn token(settings: &Settings) -> Result<Option<SecretString>, Failure> {
    match &settings.token {
        None => Ok(None),
        Some(ValueOrigin::File(path)) => {
            let found = read_token(path)?;
            let is_named = settings.data_dir.as_ref().is_none_or(|dir| dir.value.join(TOKEN_FILE) != *path);
            if found.is_none() && is_named {
                let message = format!("the context's token file {} does not exist", path.display());
                return Err(errors::hinted(FailureKind::Unauthenticated, message, "put the token into that file"));
            }
            Ok(found)
        }
        Some(_) => {
            let text = environment::current().text(TOKEN_VARIABLE).unwrap_or_default();
            checked(&text, TOKEN_VARIABLE).map(Some)
        }
    }
}

/// What to do about a token that the server rejects.
pub(crate) fn better_token(origin: &ValueOrigin) -> String {
    match origin {
        ValueOrigin::File(path) => {
            let problem = if path.exists() { "holds no token of this server" } else { "does not exist" };
            let path = path.display();
            format!("{path} {problem}; set `--data-dir` to its data directory, or OSTLER_TOKEN to a token")
        }
        _ => "set OSTLER_TOKEN to a token of this server, or unset it to use the one in its data directory".into(),
    }
}

/// Checks that the client can use this address.
pub(crate) fn check_address(server: &str) -> Result<(), Failure> {
    Client::http(server, None).map(drop)
}

pub(crate) fn default_data_dir(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    let base = xdg.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".local/share")));
    base.map(|base| base.join("ostler"))
}

fn read_token(path: &Path) -> Result<Option<SecretString>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => checked(&text, &path.display().to_string()).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(errors::hinted(
            FailureKind::Unauthenticated,
            format!("cannot read the token file {}: {error}", path.display()),
            "run as the user who runs the server, or set OSTLER_TOKEN",
        )),
    }
}

fn checked(text: &str, from: &str) -> Result<SecretString, Failure> {
    let token = text.trim();
    if token.is_empty() || token.len() > USER_TOKEN_BYTES_MAX || !token.bytes().all(|b| b.is_ascii_graphic()) {
        let message = format!("{from} does not hold a token");
        return Err(errors::hinted(FailureKind::Unauthenticated, message, "a token is one word of printable ASCII"));
    }
    Ok(SecretString::from(token.to_owned()))
}

/// Whether the URL certainly names this machine. Anything unusual counts as another machine, so that a crafted address
/// never receives the local operator's token.
pub(crate) fn is_loopback(server: &str) -> bool {
    let rest = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
    let Some(authority) = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest)) else { return false };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings that follow from flags, variables and contexts.
    fn resolved(connection: &Connection, variables: &[(&str, &str)], contexts: &str) -> Settings {
        let all = toml::from_str(contexts).unwrap();
        let env = |name: &str| variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into());
        connection.resolve(&all, env).unwrap()
    }

    fn flags(server: &str, context: &str) -> Connection {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Connection { server: given(server), context: given(context), ..Connection::default() }
    }

    const CONTEXTS: &str = r#"
        current = "lab"
        [contexts.lab]
        server = "https://lab.example.org"
        token_file = "/secrets/lab"
        tenant = "hwlab"
        [contexts.here]
        server = "http://127.0.0.1:9"
    "#;

    #[test]
    fn the_default_is_the_server_on_this_machine() {
        let settings = resolved(&Connection::default(), &[("HOME", "/h")], "");
        assert_eq!(
            settings.server,
            ConnectionSetting { value: "http://127.0.0.1:4747".into(), origin: ValueOrigin::Default }
        );
        assert_eq!(settings.token, Some(ValueOrigin::File("/h/.local/share/ostler/token".into())));
        assert_eq!(settings.tenant, None, "the server chooses it");
        let help = Connection::augment_args(clap::Command::new("ostler")).render_long_help().to_string();
        assert!(help.contains(&settings.server.value), "{help}");
    }

    #[test]
    fn flags_override_variables_and_variables_override_the_current_context() {
        let server = |connection: &Connection, variables: &[(&str, &str)]| {
            let settings = resolved(connection, variables, CONTEXTS);
            (settings.server.value, settings.server.origin.to_string())
        };
        let env = [("OSTLER_SERVER", "http://env"), ("OSTLER_CONTEXT", "here")];
        let of = |value: &str, origin: &str| (value.to_owned(), origin.to_owned());
        assert_eq!(server(&flags("http://flag", ""), &env), of("http://flag", "flag --server"));
        assert_eq!(server(&flags("", "lab"), &env), of("https://lab.example.org", "context lab"));
        assert_eq!(server(&flags("", ""), &env), of("http://env", "environment OSTLER_SERVER"));
        let alias = [("AGENTRUN_MANAGER_URL", "http://manager"), ("OSTLER_CONTEXT", "here")];
        assert_eq!(server(&flags("", ""), &alias), of("http://127.0.0.1:9", "context here"), "only runners read it");
        let runner = flags("", "").for_runner();
        assert_eq!(server(&runner, &alias), of("http://manager", "environment AGENTRUN_MANAGER_URL"));
        let both = [env[0], alias[0]];
        assert_eq!(server(&runner, &both), of("http://env", "environment OSTLER_SERVER"));
        assert_eq!(server(&flags("", ""), &env[1..]), of("http://127.0.0.1:9", "context here"));
        assert_eq!(server(&flags("", ""), &[]), of("https://lab.example.org", "context lab"));
    }

    #[test]
    fn a_contexts_token_is_sent_only_to_its_own_server() {
        let token = |connection: &Connection, variables: &[(&str, &str)]| {
            resolved(connection, variables, CONTEXTS).token.map(|origin| origin.to_string())
        };
        assert_eq!(token(&flags("", ""), &[]).as_deref(), Some("file /secrets/lab"));
        assert_eq!(token(&flags("https://other.example.org", ""), &[]), None);
        assert_eq!(token(&flags("", ""), &[("OSTLER_SERVER", "https://other.example.org")]), None);
        assert_eq!(token(&flags("", "lab"), &[("OSTLER_TOKEN", "t")]).as_deref(), Some("file /secrets/lab"));
        assert_eq!(token(&flags("", "here"), &[("OSTLER_TOKEN", "t")]).as_deref(), Some("environment OSTLER_TOKEN"));
    }

    #[test]
    fn an_unknown_context_is_rejected() {
        let all: Contexts = toml::from_str(CONTEXTS).unwrap();
        let failure = flags("", "lob").resolve(&all, |_| None).unwrap_err();
        assert_eq!(failure.message, "no context \"lob\"; existing contexts: here, lab");
    }

    #[test]
    fn the_token_file_is_used_only_for_this_machine() {
        for ours in
            ["http://127.0.0.1:4747", "http://localhost/", "https://localhost:1", "http://[::1]:9", "http://127.9.9.9"]
        {
            assert!(is_loopback(ours), "{ours}");
        }
        for other in [
            "http://example.org",
            "http://localhost.example.org:4747",
            "http://127.0.0.1.example.org",
            "http://127.0.0.1:80@example.org",
            "http://localhost@example.org",
            "http://127.0.0.1\\@example.org",
            "http://example.org/127.0.0.1",
            "http://example.org#localhost",
            "localhost:4747",
            "",
        ] {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn the_data_directory_follows_xdg_then_home() {
        let dir = |xdg: Option<&str>, home: Option<&str>| default_data_dir(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(dir(Some("/x"), Some("/h")), Some("/x/ostler".into()));
        assert_eq!(dir(Some("relative"), Some("/h")), Some("/h/.local/share/ostler".into()));
        assert_eq!(dir(None, None), None);
    }

    #[test]
    fn an_invalid_token_is_rejected_without_being_printed() {
        for bad in ["", "two words", "ümlaut"] {
            let failure = checked(bad, "OSTLER_TOKEN").unwrap_err();
            assert_eq!(failure.message, "OSTLER_TOKEN does not hold a token");
        }
        assert!(checked("abc\n", "OSTLER_TOKEN").is_ok());
    }

    #[test]
    fn a_suggested_command_reaches_the_same_server() {
        let connection = Connection { data_dir: Some("/my data".into()), ..flags("http://[::1]:9", "") };
        assert_eq!(connection.invocation(), "ostler --server 'http://[::1]:9' --data-dir '/my data'");
        assert_eq!(flags("", "my lab").invocation(), "ostler --context 'my lab'");
    }
}
