//! Protects the secrets of the server and the runner, which start programs that must not learn them.
//!
//! The initial environment of a process stays readable in `/proc/PID/environ` for as long as it lives, even if variables are
//! unset later. So a process that was started with secrets in its environment writes them to an anonymous file, executes the
//! same program again with the rest of the environment, and reads the file back. Linux only: other systems have no such file.

use std::sync::OnceLock;

use ostler_server::config::Environment;

static CURRENT: OnceLock<Environment> = OnceLock::new();

/// The variables this process was started with, including the secrets that were removed from its environment.
pub(crate) fn current() -> Environment {
    CURRENT.get().cloned().unwrap_or_default()
}

/// The name of `--database-url` among the variables. It is removed from the command line, which every process can read.
pub(crate) const DATABASE_URL_FLAG: &str = "--database-url";

#[cfg(target_os = "linux")]
pub(crate) use linux::protect;

#[cfg(not(target_os = "linux"))]
pub(crate) fn protect() -> Result<(), ostler_protocol::Failure> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        ffi::{OsStr, OsString},
        fs::File,
        io::{self, Read, Write},
        os::{
            fd::AsRawFd,
            unix::{
                ffi::{OsStrExt, OsStringExt},
                process::CommandExt,
            },
        },
        process::Command,
    };

    use ostler_protocol::{Failure, Rule};
    use ostler_runner::guard::{close_inherited, hide_memory};
    use ostler_server::config::Environment;
    use rustix::fs::{MemfdFlags, memfd_create};

    use crate::environment::{CURRENT, DATABASE_URL_FLAG};

    /// Holds the number of the descriptor of the anonymous file with the secrets.
    const HANDOVER: &str = "OSTLER_HANDOVER";
    /// More than the system allows for all variables together.
    const HANDOVER_BYTES_MAX: u64 = 16 * 1024 * 1024;

    /// Variables that stay in the environment unless their name marks a secret: settings that libraries read from there, and
    /// what helps an operator who inspects the process.
    const SAFE_NAMES: &[&str] = &[
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "TZ",
        "TERM",
        "COLORTERM",
        "NO_COLOR",
        "COLUMNS",
        "LINES",
        "CI",
        "TMPDIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "NOTIFY_SOCKET",
        "CREDENTIALS_DIRECTORY",
    ];
    const SAFE_PREFIXES: &[&str] = &["LC_", "XDG_", "PG", "AWS_", "OSTLER_"];

    /// Must be called before any file is opened and any thread is started. May replace this process by a new one.
    pub(crate) fn protect() -> Result<(), Failure> {
        hide_memory().map_err(failed)?;
        if let Some(descriptor) = std::env::var_os(HANDOVER) {
            let secret = read(&descriptor).map_err(failed)?;
            // This also closes the file with the secrets.
            close_inherited().map_err(failed)?;
            // The kernel names the process after the link that it was started by.
            let _ = rustix::thread::set_name(c"ostler");
            let _ = CURRENT.set(Environment::with_taken(secret));
            return Ok(());
        }
        close_inherited().map_err(failed)?;
        let (safe, mut secret): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(name, _)| is_safe(name));
        let (arguments, url) = without_database_url(std::env::args_os().collect());
        secret.extend(url.map(|url| (DATABASE_URL_FLAG.into(), url)));
        if secret.is_empty() {
            return Ok(());
        }
        Err(failed(hand_over(&arguments, safe, &secret)))
    }

    fn is_safe(name: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let is_listed = SAFE_NAMES.contains(&name) || SAFE_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        is_listed && !names_a_secret(name)
    }

    fn names_a_secret(name: &str) -> bool {
        let words = ["SECRET", "PASSWORD", "TOKEN", "KEY", "CREDENTIAL", "DATABASE_URL"];
        // The path of a file is not a secret, and libraries read some of these variables themselves.
        let is_path = name.ends_with("_FILE") || name == "CREDENTIALS_DIRECTORY";
        !is_path && words.iter().any(|word| name.contains(word))
    }

    /// The arguments without `--database-url` and its value.
    fn without_database_url(arguments: Vec<OsString>) -> (Vec<OsString>, Option<OsString>) {
        let (mut rest, mut url) = (vec![], None);
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let joined = argument.as_bytes().strip_prefix(b"--database-url=");
            if let Some(value) = joined {
                url = Some(OsStr::from_bytes(value).to_owned());
            } else if argument == DATABASE_URL_FLAG {
                url = arguments.next();
            } else {
                rest.push(argument);
            }
        }
        (rest, url)
    }

    /// Executes the same program without the secrets in its environment. Returns only if that fails.
    fn hand_over(
        arguments: &[OsString],
        safe: Vec<(OsString, OsString)>,
        secret: &[(OsString, OsString)],
    ) -> io::Error {
        let start = || {
            // Without CLOEXEC: the new program inherits it, once.
            let mut file = File::from(memfd_create("ostler-environment", MemfdFlags::empty())?);
            for (name, value) in secret {
                file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
            }
            let mut command = Command::new("/proc/self/exe");
            let (program, rest) = arguments.split_first().ok_or_else(|| io::Error::other("no arguments"))?;
            command.arg0(program).args(rest).env_clear().envs(safe);
            command.env(HANDOVER, file.as_raw_fd().to_string());
            Err(command.exec())
        };
        start().map_or_else(|error| error, |never: std::convert::Infallible| match never {})
    }

    fn read(descriptor: &OsStr) -> io::Result<Vec<(OsString, OsString)>> {
        let number: u32 = descriptor
            .to_str()
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| io::Error::other("not a descriptor"))?;
        let mut bytes = vec![];
        // Opened again, so that it is read from its beginning.
        File::open(format!("/proc/self/fd/{number}"))?.take(HANDOVER_BYTES_MAX).read_to_end(&mut bytes)?;
        let variables = bytes.split(|byte| *byte == 0).filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(variable[..at].to_vec()), OsString::from_vec(variable[at + 1..].to_vec())))
        });
        Ok(variables.collect())
    }

    fn failed(error: io::Error) -> Failure {
        let message = format!("the secrets could not be removed from the environment: {error}");
        Failure::rule(Rule::Environment, message)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_variables_without_secrets_stay() {
            for safe in [
                "PATH",
                "LC_ALL",
                "PGHOST",
                "PGPASSFILE",
                "OSTLER_RUNNER__SLOTS",
                "OSTLER_DATA_DIR",
                "AWS_REGION",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "HTTPS_PROXY",
                "OSTLER_SECRETS__KEY_FILE",
            ] {
                assert!(is_safe(OsStr::new(safe)), "{safe}");
            }
            for secret in [
                "DATABASE_URL",
                "OSTLER_SECRETS__KEY",
                "OSTLER_STORE__DATABASE_URL",
                "OSTLER_TOKEN",
                "PGPASSWORD",
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "OPENAI_API_KEY",
                "ANYTHING_ELSE",
            ] {
                assert!(!is_safe(OsStr::new(secret)), "{secret}");
            }
        }

        #[test]
        fn a_database_url_is_removed_from_the_command_line() {
            let of = |words: &[&str]| without_database_url(words.iter().map(OsString::from).collect());
            let expected: Vec<OsString> = ["ostler", "serve", "--listen", "x"].map(OsString::from).to_vec();
            let url = Some(OsString::from("postgres://u:p@h/d"));
            assert_eq!(
                of(&["ostler", "serve", "--database-url", "postgres://u:p@h/d", "--listen", "x"]),
                (expected.clone(), url.clone())
            );
            assert_eq!(of(&["ostler", "serve", "--database-url=postgres://u:p@h/d", "--listen", "x"]), (expected, url));
            assert_eq!(of(&["ostler", "serve"]).1, None);
        }
    }
}
