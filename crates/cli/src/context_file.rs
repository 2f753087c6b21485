//! The file of contexts: names for servers, in `contexts.toml` in the user's configuration directory. The file holds no
//! secret; a context may name the file that does. `connection.rs` decides which context is used.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap_complete::CompletionCandidate;
use ostler_protocol::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

use crate::{errors, terminal::output::line};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Contexts {
    /// The context that is used unless another is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    pub contexts: BTreeMap<String, ConnectionContext>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConnectionContext {
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

impl Contexts {
    /// Reads the file. A missing file holds no contexts.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = file() else { return Ok(Self::default()) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).map_err(|why| broken(&path, &why)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(broken(&path, &error.to_string())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    pub(crate) fn save(&self) -> Result<(), Failure> {
        let path = file().ok_or_else(|| broken(Path::new("contexts.toml"), "HOME is not set"))?;
        let text = toml::to_string(self).map_err(Failure::internal)?;
        // Written to another file and renamed: a half-written file would lose every context.
        let temporary = path.with_extension("toml.new");
        let write = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::File::create(&temporary)?.write_all(text.as_bytes())?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|error| broken(&path, &error.to_string()))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&ConnectionContext, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let existing: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            let existing = if existing.is_empty() { "none".into() } else { existing.join(", ") };
            let message = format!("no context {name:?}; existing contexts: {existing}");
            errors::hinted(FailureKind::NotFound, message, "add it: ostler contexts add NAME --server URL")
        })
    }

    pub(crate) fn put(&mut self, name: &str, context: ConnectionContext) -> Result<String, Failure> {
        ostler_protocol::ids::name("the context's name", name)?;
        let mut message = format!("context {name:?} names {}", context.server);
        if let Some(former) = self.contexts.insert(name.to_owned(), context) {
            message.push_str(&format!("; it named {} before", former.server));
        }
        if self.current.is_none() {
            self.current = Some(name.to_owned());
            message.push_str("; it is the current one now, which commands use without --context");
        }
        Ok(message)
    }

    pub(crate) fn choose(&mut self, name: &str) -> Result<String, Failure> {
        if name == "none" && !self.contexts.contains_key(name) {
            let message = "there is no context \"none\"";
            return Err(errors::hinted(
                FailureKind::NotFound,
                message,
                "to use no context: ostler contexts use --none",
            ));
        }
        let message = format!("context {name:?} is the current one: {}", self.get(name)?.server);
        self.current = Some(name.to_owned());
        Ok(message)
    }

    /// Uses no context until another one is chosen.
    pub(crate) fn clear_current(&mut self) -> String {
        match self.current.take() {
            Some(name) => format!("context {name:?} is no longer the current one; no context is used"),
            None => "no context is used".to_owned(),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<String, Failure> {
        self.get(name)?;
        self.contexts.remove(name);
        self.current = self.current.take().filter(|current| current != name);
        Ok(format!("context {name:?} removed"))
    }
}

/// The path of the file. `None` if there is no home directory.
pub(crate) fn file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("ostler/contexts.toml"))
}

/// The names of contexts that begin with what was typed, for a shell.
pub(crate) fn candidates(word: &OsStr) -> Vec<CompletionCandidate> {
    let begun = word.to_str().unwrap_or_default();
    let all = Contexts::load().map(|all| all.contexts).unwrap_or_default();
    let fitting = all.into_iter().filter(|(name, _)| name.starts_with(begun));
    fitting.map(|(name, context)| CompletionCandidate::new(name).help(Some(context.server.into()))).collect()
}

fn broken(path: &Path, why: &str) -> Failure {
    let message = format!("{}: {}", path.display(), line(why, 300));
    errors::usage(message, "fix or remove the file; `ostler contexts add` writes a new one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(server: &str) -> ConnectionContext {
        ConnectionContext { server: server.into(), token_file: None, data_dir: None, tenant: None }
    }

    #[test]
    fn the_first_context_becomes_the_current_one() {
        let mut all = Contexts::default();
        assert_eq!(
            all.put("lab", named("http://c")).unwrap(),
            "context \"lab\" names http://c; it is the current one now, which commands use without --context"
        );
        let replaced = all.put("lab", named("http://a")).unwrap();
        assert_eq!(replaced, "context \"lab\" names http://a; it named http://c before");
        all.put("prod", named("http://b")).unwrap();
        assert_eq!(all.current.as_deref(), Some("lab"));
        all.choose("prod").unwrap();
        assert_eq!(all.current.as_deref(), Some("prod"));
        all.remove("prod").unwrap();
        assert_eq!((all.current.as_deref(), all.contexts.len()), (None, 1));
    }

    #[test]
    fn the_current_context_can_be_left() {
        let mut all = Contexts::default();
        all.put("lab", named("http://a")).unwrap();
        let details = format!("{:?}", all.choose("none").unwrap_err().details);
        assert!(details.contains("ostler contexts use --none"), "{details}");
        assert_eq!(all.clear_current(), "context \"lab\" is no longer the current one; no context is used");
        assert_eq!((all.current.as_deref(), all.contexts.len()), (None, 1));
        assert_eq!(all.clear_current(), "no context is used");
        all.put("none", named("http://b")).unwrap();
        assert!(all.choose("none").is_ok(), "a context may have that name");
    }

    #[test]
    fn a_written_file_is_read_back_unchanged() {
        let mut all = Contexts::default();
        all.put(
            "lab",
            ConnectionContext { token_file: Some("/t".into()), tenant: Some("team".into()), ..named("http://a") },
        )
        .unwrap();
        assert_eq!(Contexts::parse(&toml::to_string(&all).unwrap()).unwrap(), all);
    }

    #[test]
    fn an_unknown_name_lists_the_existing_ones() {
        let mut all = Contexts::default();
        all.put("lab", named("http://a")).unwrap();
        assert_eq!(all.choose("lob").unwrap_err().message, "no context \"lob\"; existing contexts: lab");
    }

    #[test]
    fn an_unknown_key_is_rejected() {
        assert!(Contexts::parse("[contexts.a]\nserver = \"x\"\ntoken = \"secret\"\n").is_err());
    }
}
