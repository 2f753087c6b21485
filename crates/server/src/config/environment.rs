//! The variables that a server is configured by: those of its process, and those that were taken out of the process's
//! environment before it started, because every process of the same user could read them there.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    sync::Arc,
};

#[derive(Clone, Default)]
pub struct Environment(Arc<BTreeMap<OsString, OsString>>);

impl Environment {
    /// The process's environment together with variables that were taken out of it.
    pub fn with_taken(taken: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self(Arc::new(taken.into_iter().collect()))
    }

    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(OsStr::new(name)).cloned().or_else(|| std::env::var_os(name))
    }

    /// The value as text. `None` if it is unset, empty or not UTF-8.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)?.into_string().ok().filter(|value| !value.is_empty())
    }

    /// The variables that are no longer in the process's environment.
    pub fn taken_variables(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.0.iter()
    }

    /// Every variable.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let taken = self.0.iter().map(|(name, value)| (name.clone(), value.clone()));
        std::env::vars_os().filter(|(name, _)| !self.0.contains_key(name)).chain(taken)
    }
}

/// Names only: the values may be secrets.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Adds `PGPASSWORD` to a URL without a password, if it is no longer in the process's environment, where sqlx would find it.
pub(super) fn with_password(url: String, environment: &Environment) -> String {
    let Some((_, password)) = environment.taken_variables().find(|(name, _)| *name == "PGPASSWORD") else { return url };
    let Some(password) = password.to_str() else { return url };
    let (address, query) = url.split_once('?').unwrap_or((&url, ""));
    let authority = address.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(rest));
    let has_password = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
        || query.split('&').any(|pair| pair.starts_with("password="));
    if has_password {
        return url;
    }
    let password = percent_encoding::utf8_percent_encode(password, percent_encoding::NON_ALPHANUMERIC);
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}password={password}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_variable_is_read_like_any_other_and_never_shown() {
        let environment =
            Environment::with_taken([("PGPASSWORD".into(), "pl4nted".into()), ("EMPTY".into(), "".into())]);
        assert_eq!(environment.text("PGPASSWORD").as_deref(), Some("pl4nted"));
        assert_eq!(environment.text("EMPTY"), None);
        assert_eq!(environment.get("PATH"), std::env::var_os("PATH"));
        assert!(environment.variables().any(|(name, _)| name == "PGPASSWORD"));
        assert!(!format!("{environment:?}").contains("pl4nted"));
    }

    #[test]
    fn a_password_that_was_taken_out_of_the_environment_is_put_into_the_url() {
        let taken = Environment::with_taken([("PGPASSWORD".into(), "p&s".into())]);
        for (url, expected) in [
            ("postgres:///x", "postgres:///x?password=p%26s"),
            ("postgres://me@h/x?sslmode=disable", "postgres://me@h/x?sslmode=disable&password=p%26s"),
            ("postgres://me:own@h/x", "postgres://me:own@h/x"),
            ("postgres:///x?password=own", "postgres:///x?password=own"),
        ] {
            assert_eq!(with_password(url.into(), &taken), expected);
            assert_eq!(with_password(url.into(), &Environment::default()), url);
        }
    }
}
