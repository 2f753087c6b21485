//! The server's own tokens: a prefix that names the kind, and 256 random bits. Only their hashes are stored, except for the
//! operator's token, which is in the data directory, readable by its owner only.

use std::{
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use ostler_crypto::{jwk::SigningKey, mac::MacKey};
use ostler_protocol::{
    Failure, Rule,
    json::{hex, unhex},
};
use secrecy::{ExposeSecret, SecretString};

use crate::clock;

/// The prefix of every token of ours.
pub(super) const PREFIX: &str = "ost_";
/// The kinds of token, as they follow the prefix: a service's, and a runner's for one run. Dialects have others.
pub const SERVICE: &str = "svc";
pub const RUN: &str = "run";
const OPERATOR: &str = "op";

pub fn token_hash(token: &str) -> String {
    hex(&ostler_crypto::sha256(token.as_bytes()))
}

/// A new token: a prefix that names its kind, and 256 random bits.
pub fn mint(kind: &str) -> SecretString {
    let mut random = [0; 32];
    clock::fill(&mut random);
    SecretString::from(format!("{PREFIX}{kind}_{}", hex(&random)))
}

/// A token that every server with the same key derives from the same parts, so that none of them must store it.
pub fn derive(kind: &str, key: &MacKey, parts: &[&[u8]]) -> SecretString {
    SecretString::from(format!("{PREFIX}{kind}_{}", hex(&key.tag(parts))))
}

/// The operator's token: made on the first start, readable by the owner only.
pub fn operator_token(data_dir: &Path) -> Result<(SecretString, PathBuf), Failure> {
    let path = data_dir.join("token");
    Ok((secret_file(&path, || mint(OPERATOR))?, path))
}

/// Characters of a token that an operator has chosen. A shorter one could be guessed.
const CHOSEN_CHARS_MIN: usize = 16;
const CHOSEN_CHARS_MAX: usize = 512;

/// A token of the operator from a variable, without the space around it. `None` if the variable holds none.
pub fn token_of_variable(variable: &str, value: Option<String>) -> Result<Option<SecretString>, Failure> {
    let value = value.unwrap_or_default();
    let token = value.trim();
    if token.is_empty() {
        return Ok(None);
    }
    let is_graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_graphic || !(CHOSEN_CHARS_MIN..=CHOSEN_CHARS_MAX).contains(&token.len()) {
        let message = format!(
            "{variable} must be a token of {CHOSEN_CHARS_MIN} to {CHOSEN_CHARS_MAX} printable ASCII characters without spaces"
        );
        return Err(Failure::invalid(Rule::Config, message));
    }
    Ok(Some(SecretString::from(token.to_owned())))
}

/// The key with which this server signs users' tokens, stored in the same way. It never leaves this machine: other servers of
/// the same store get its public half. Also returns its text, which must be redacted everywhere.
pub fn signing_key(data_dir: &Path) -> Result<(SigningKey, SecretString), Failure> {
    let path = data_dir.join("signing-key");
    let text = random_secret_file(&path)?;
    let seed = unhex(text.expose_secret()).and_then(|seed| SigningKey::from_seed(&seed));
    let key = seed.ok_or_else(|| {
        Failure::rule(Rule::TokenFile, format!("{} does not hold a key; remove it to have one made", path.display()))
    })?;
    Ok((key, text))
}

/// 256 random bits in their own file, which is created at the first call.
pub fn random_secret_file(path: &Path) -> Result<SecretString, Failure> {
    secret_file(path, || {
        let mut random = [0; 32];
        clock::fill(&mut random);
        SecretString::from(hex(&random))
    })
}

/// A secret in its own file. A file that other users can read is rejected, not repaired: it may have been read already.
fn secret_file(path: &Path, make: impl Fn() -> SecretString) -> Result<SecretString, Failure> {
    let broken = |error: std::io::Error| Failure::rule(Rule::TokenFile, format!("{}: {error}", path.display()));
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().len() >= 32 => {
            let mode = std::fs::metadata(path).map_err(broken)?.permissions().mode();
            // systemd grants the service access to its credentials by an ACL, which shows up as a permission of the group.
            let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|dir| path.starts_with(dir));
            let others = if credentials { 0o007 } else { 0o077 };
            if mode & others != 0 {
                let message = format!("{} can be read by others; run: chmod 600 {0}", path.display());
                return Err(Failure::rule(Rule::TokenFileMode, message));
            }
            Ok(SecretString::from(text.trim().to_owned()))
        }
        Ok(_) => {
            let message = format!("{} does not hold a secret; remove it to have one made", path.display());
            Err(Failure::rule(Rule::TokenFile, message))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let secret = make();
            match write_new(path, &secret) {
                // Another server on the same directory was faster.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => secret_file(path, make),
                written => written.map(|()| secret).map_err(broken),
            }
        }
        Err(error) => Err(broken(error)),
    }
}

/// Creates the file atomically, even if another process creates it too or this process dies.
fn write_new(path: &Path, secret: &SecretString) -> std::io::Result<()> {
    let mut random = [0; 8];
    clock::fill(&mut random);
    let draft = path.with_extension(format!("new-{}", hex(&random)));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = writeln!(file, "{}", secret.expose_secret()).and_then(|()| file.sync_all());
    let named = written.and_then(|()| std::fs::hard_link(&draft, path));
    std::fs::remove_file(&draft)?;
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_token_is_trimmed_and_long_enough() {
        let token = |value: &str| token_of_variable("TOKEN", Some(value.to_owned()));
        let found = token(" 0123456789abcdef\n").unwrap().unwrap();
        assert_eq!(found.expose_secret(), "0123456789abcdef");
        assert!(token("  ").unwrap().is_none() && token_of_variable("TOKEN", None).unwrap().is_none());
        for bad in ["short", "0123456789 abcdef", &"a".repeat(513)] {
            let failure = token(bad).unwrap_err();
            assert!(failure.message.starts_with("TOKEN must be") && !failure.message.contains(bad), "{bad:.20}");
        }
    }

    #[test]
    fn servers_that_start_at_once_on_one_directory_agree() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..16).map(|_| scope.spawn(|| operator_token(dir.path()).unwrap().0)).collect();
            starting.into_iter().map(|one| one.join().unwrap().expose_secret().to_owned()).collect::<Vec<_>>()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]));
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["token"]);
    }
}
