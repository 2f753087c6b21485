//! Protects the processes that hold secrets while they start programs that must not have them: the server and the runner.
//!
//! A process's first environment stays readable in `/proc/PID/environ` for as long as it lives, whatever it unsets later. So a
//! process that was started with secrets in it writes them to an anonymous file, replaces itself by the same program with the
//! rest of the environment, and reads the file back. Linux only; elsewhere there is no such file to read.

use std::sync::OnceLock;

use ostler_server::config::Environment;

static CURRENT: OnceLock<Environment> = OnceLock::new();

/// The variables this process was started with, including those that were taken out of its environment.
pub fn current() -> Environment {
    CURRENT.get().cloned().unwrap_or_default()
}

/// What `--database-url` is called among the variables: the command line is readable by everybody.
pub const DATABASE_URL_FLAG: &str = "--database-url";

#[cfg(target_os = "linux")]
pub use linux::protect;

#[cfg(not(target_os = "linux"))]
pub fn protect() -> Result<(), ostler_protocol::Failure> {
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

    use ostler_protocol::{Failure, FailureKind};
    use ostler_runner::guard::{close_inherited, hide_memory};
    use ostler_server::config::Environment;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::{CURRENT, DATABASE_URL_FLAG};

    /// Holds the number of the descriptor with what was taken out of the environment.
    const HANDOVER: &str = "OSTLER_HANDOVER";
    /// More than the system allows for all variables together.
    const HANDOVER_BYTES_MAX: u64 = 16 * 1024 * 1024;

    /// What stays in the environment, unless its name says that it is a secret: settings that libraries read from there, and
    /// what helps an operator who looks at the process.
    const KEPT: &[&str] = &[
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
    const KEPT_BEGINNINGS: &[&str] = &["LC_", "XDG_", "PG", "AWS_", "OSTLER_"];

    /// To be called first of all, before anything is opened and any thread is started. May replace the process by itself.
    pub fn protect() -> Result<(), Failure> {
        hide_memory().map_err(failed)?;
        if let Some(descriptor) = std::env::var_os(HANDOVER) {
            let taken = read(&descriptor).map_err(failed)?;
            // The file with the secrets is among them.
            close_inherited().map_err(failed)?;
            // The kernel has named the process after the link that it was started by.
            let _ = rustix::thread::set_name(c"ostler");
            let _ = CURRENT.set(Environment::with_taken(taken));
            return Ok(());
        }
        close_inherited().map_err(failed)?;
        let (kept, mut taken): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(name, _)| is_kept(name));
        let (arguments, url) = without_database_url(std::env::args_os().collect());
        taken.extend(url.map(|url| (DATABASE_URL_FLAG.into(), url)));
        if taken.is_empty() {
            return Ok(());
        }
        Err(failed(hand_over(&arguments, kept, &taken)))
    }

    fn is_kept(name: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let is_known = KEPT.contains(&name) || KEPT_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
        is_known && !names_a_secret(name)
    }

    fn names_a_secret(name: &str) -> bool {
        let words = ["SECRET", "PASSWORD", "TOKEN", "KEY", "CREDENTIAL", "DATABASE_URL"];
        // A file's path is no secret, and libraries look for some of them by themselves.
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

    /// Becomes the same program without what was taken. Returns only if that fails.
    fn hand_over(arguments: &[OsString], kept: Vec<(OsString, OsString)>, taken: &[(OsString, OsString)]) -> io::Error {
        let start = || {
            // Without CLOEXEC: it is there to be inherited, once.
            let mut file = File::from(memfd_create("ostler-environment", MemfdFlags::empty())?);
            for (name, value) in taken {
                file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
            }
            let mut command = Command::new("/proc/self/exe");
            let (program, rest) = arguments.split_first().ok_or_else(|| io::Error::other("no arguments"))?;
            command.arg0(program).args(rest).env_clear().envs(kept);
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
        // Opened again: this reads from its beginning.
        File::open(format!("/proc/self/fd/{number}"))?.take(HANDOVER_BYTES_MAX).read_to_end(&mut bytes)?;
        let variables = bytes.split(|byte| *byte == 0).filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(variable[..at].to_vec()), OsString::from_vec(variable[at + 1..].to_vec())))
        });
        Ok(variables.collect())
    }

    fn failed(error: io::Error) -> Failure {
        let message = format!("the secrets could not be taken out of the environment: {error}");
        Failure::rule(FailureKind::InfraFailed, "environment", message)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_harmless_variables_stay() {
            for kept in [
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
                assert!(is_kept(OsStr::new(kept)), "{kept}");
            }
            for taken in [
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
                assert!(!is_kept(OsStr::new(taken)), "{taken}");
            }
        }

        #[test]
        fn a_database_url_leaves_the_command_line() {
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
