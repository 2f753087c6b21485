//! Where the server is and which token opens it. A token is read, handed to the client and never shown; there is no
//! flag for it, because a command line is visible to every process of the machine.

use std::{
    ffi::OsString,
    io::ErrorKind,
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use ostler_client::Client;
use ostler_protocol::{Failure, FailureKind};
use ostler_server::config::DEFAULT_LISTEN;
use secrecy::SecretString;

use crate::errors;

const TOKEN_VARIABLE: &str = "OSTLER_TOKEN";
const TOKEN_FILE: &str = "token";
const TOKEN_BYTES_MAX: usize = 4 * 1024;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// The server to talk to [default: http://127.0.0.1:4747]
    #[arg(long, global = true, env = "OSTLER_SERVER", value_name = "URL", hide_env_values = true)]
    server: Option<String>,
    /// The server's data directory, where its `token` file is [default: $XDG_DATA_HOME/ostler, ~/.local/share/ostler]
    ///
    /// The file is only used for a server on this machine; for another one, set OSTLER_TOKEN.
    #[arg(long, global = true, env = "OSTLER_DATA_DIR", value_name = "DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,
}

impl Connection {
    pub fn client(&self) -> Result<Client, Failure> {
        let server = self.server();
        let token = match variable(TOKEN_VARIABLE) {
            Some(token) => Some(checked(&token, TOKEN_VARIABLE)?),
            None if is_loopback(&server) => self.token_file()?,
            None => None,
        };
        Client::http(&server, token)
    }

    fn server(&self) -> String {
        self.server.clone().filter(|s| !s.is_empty()).unwrap_or_else(|| format!("http://{DEFAULT_LISTEN}"))
    }

    /// The data directory that was named. A variable set to nothing names none.
    pub fn data_dir(&self) -> Option<PathBuf> {
        self.data_dir.clone().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// How to call us again so that we reach the same server, for commands we suggest. An address that holds a
    /// password is left out.
    pub fn invocation(&self) -> String {
        let mut out = String::from("ostler");
        if let Some(server) = self.server.as_ref().filter(|s| !s.is_empty() && !s.contains('@')) {
            out.push_str(&format!(" --server {}", quoted(server)));
        }
        if let Some(dir) = self.data_dir() {
            out.push_str(&format!(" --data-dir {}", quoted(&dir.to_string_lossy())));
        }
        out
    }

    fn token_file(&self) -> Result<Option<SecretString>, Failure> {
        let dir = self.data_dir().or_else(|| data_dir(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME")));
        let Some(path) = dir.map(|dir| dir.join(TOKEN_FILE)) else { return Ok(None) };
        read_token(&path)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn data_dir(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    let base = xdg.and_then(absolute).or_else(|| home.and_then(absolute).map(|home| home.join(".local/share")));
    base.map(|base| base.join("ostler"))
}

/// A missing file is no failure: the server may want no token, and says so if it does.
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
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX || !token.bytes().all(|b| b.is_ascii_graphic()) {
        let message = format!("{from} does not hold a token");
        return Err(errors::hinted(FailureKind::Unauthenticated, message, "a token is one word of printable ASCII"));
    }
    Ok(SecretString::from(token.to_owned()))
}

/// Whether the URL surely names this machine. Anything unusual counts as another one, so that the local operator's
/// token is never sent away by a cleverly written address.
fn is_loopback(server: &str) -> bool {
    let rest = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
    let Some(authority) = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest)) else { return false };
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.:-_@%+=,~[]".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_the_default_port() {
        let text = Connection::default().server();
        assert_eq!(text, "http://127.0.0.1:4747");
        let help = Connection::augment_args(clap::Command::new("ostler")).render_long_help().to_string();
        assert!(help.contains(&text), "{help}");
    }

    #[test]
    fn only_this_machine_gets_the_token_file() {
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
        let dir = |xdg: Option<&str>, home: Option<&str>| data_dir(xdg.map(Into::into), home.map(Into::into));
        assert_eq!(dir(Some("/x"), Some("/h")), Some("/x/ostler".into()));
        assert_eq!(dir(Some("relative"), Some("/h")), Some("/h/.local/share/ostler".into()));
        assert_eq!(dir(None, None), None);
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        for bad in ["", "two words", "ümlaut"] {
            let failure = checked(bad, "OSTLER_TOKEN").unwrap_err();
            assert_eq!(failure.message, "OSTLER_TOKEN does not hold a token");
        }
        assert!(checked("abc\n", "OSTLER_TOKEN").is_ok());
    }

    #[test]
    fn a_suggested_command_reaches_the_same_server() {
        let connection = Connection { server: Some("http://[::1]:9".into()), data_dir: Some("/my data".into()) };
        assert_eq!(connection.invocation(), "ostler --server http://[::1]:9 --data-dir '/my data'");
        assert_eq!(Connection::default().invocation(), "ostler");
    }
}
