//! `ostler context`: names for servers, kept in `contexts.toml` in the user's configuration directory. The file holds no
//! secret; a context may name the file that does. How a context is chosen, and what it decides, is in `connect.rs`.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap::Subcommand;
use ostler_protocol::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

use crate::{
    confirm::Confirm,
    connect::{self, Connection},
    errors, exit_codes,
    output::{self, Output, line},
    table::table,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Contexts {
    /// The one that counts when nothing else is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    pub contexts: BTreeMap<String, Context>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Name servers, and choose one
///
/// Contexts are kept in `contexts.toml` in the user's configuration directory. A context is taken whole; a server named by
/// `--server` or OSTLER_SERVER stands alone, so that no token reaches a server it is not for.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler context add lab --server https://ostler.example.org --token-file ~/.lab-token\n  \
    ostler context use lab\n  ostler --context lab ps"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    List(ListArgs),
    Add(AddArgs),
    Use(UseArgs),
    Remove(RemoveArgs),
}

/// List the contexts; the current one has a star
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler context list\n  ostler context list -o json | jq -r '.[].server'")]
struct ListArgs {
    #[command(flatten)]
    output: Output,
}

/// Add a context, or change one
///
/// The server is the one `--server` names. The first context becomes the current one.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler context add lab --server https://ostler.example.org --token-file ~/.lab-token\n  \
    ostler context add here --server http://127.0.0.1:4747 --tenant hwlab"
)]
struct AddArgs {
    name: String,
    /// The file that holds the token for it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The tenant to run for
    #[arg(long)]
    tenant: Option<String>,
}

/// Make a context the current one
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler context use lab")]
struct UseArgs {
    name: String,
}

/// Forget a context
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler context remove lab --yes")]
struct RemoveArgs {
    name: String,
    #[command(flatten)]
    confirm: Confirm,
}

/// A context as it is listed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    name: &'a str,
    current: bool,
    server: &'a str,
    token_file: Option<&'a Path>,
    data_dir: Option<&'a Path>,
    tenant: Option<&'a str>,
}

pub fn context(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::List(args) => list(args),
        Verb::Add(args) => add(connection, args),
        Verb::Use(args) => change(|all| all.choose(&args.name)),
        Verb::Remove(args) => {
            Contexts::load()?.get(&args.name)?;
            if !args.confirm.ask(&format!("forget the context {:?}?", args.name))? {
                return Ok(exit_codes::OK);
            }
            change(|all| all.remove(&args.name))
        }
    }
}

fn list(args: &ListArgs) -> Result<u8, Failure> {
    let all = Contexts::load()?;
    let listed = all.contexts.iter().map(|(name, context)| Listed {
        name,
        current: all.current.as_ref() == Some(name),
        server: &context.server,
        token_file: context.token_file.as_deref(),
        data_dir: context.data_dir.as_deref(),
        tenant: context.tenant.as_deref(),
    });
    let listed: Vec<_> = listed.collect();
    args.output.many(&listed, || {
        let rows = listed.iter().map(|one| {
            let star = if one.current { "*" } else { "" };
            vec![star.into(), one.name.into(), line(one.server, 200), one.tenant.unwrap_or("-").into()]
        });
        table(&["", "NAME", "SERVER", "TENANT"], rows.collect(), &[2], output::width())
    });
    if listed.is_empty() {
        output::words("no contexts; add one: ostler context add NAME --server URL\n");
    }
    Ok(exit_codes::OK)
}

fn add(connection: &Connection, args: &AddArgs) -> Result<u8, Failure> {
    let server = connection.server_flag().ok_or_else(|| {
        errors::usage("a context needs a server", "name it: ostler context add NAME --server http://127.0.0.1:4747")
    })?;
    connect::check_address(server)?;
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Failure::internal);
    let context = Context {
        server: server.to_owned(),
        token_file: args.token_file.as_ref().map(absolute).transpose()?,
        data_dir: connection.data_dir_flag().map(absolute).transpose()?,
        tenant: args.tenant.clone(),
    };
    change(|all| all.put(&args.name, context))
}

/// Reads the file, changes what it holds, writes it whole, and says what stands there now.
fn change(change: impl FnOnce(&mut Contexts) -> Result<String, Failure>) -> Result<u8, Failure> {
    let mut all = Contexts::load()?;
    let said = change(&mut all)?;
    all.save()?;
    output::words(&format!("{said}\n"));
    Ok(exit_codes::OK)
}

impl Contexts {
    /// What the file holds; nothing, where there is none.
    pub fn load() -> Result<Self, Failure> {
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

    fn save(&self) -> Result<(), Failure> {
        let path = file().ok_or_else(|| broken(Path::new("contexts.toml"), "there is no HOME to keep it in"))?;
        let text = toml::to_string(self).map_err(Failure::internal)?;
        // Beside it first, then over it: a file that is half written would lose every context.
        let beside = path.with_extension("toml.new");
        let write = || {
            std::fs::create_dir_all(path.parent().expect("the file is in a directory"))?;
            std::fs::File::create(&beside)?.write_all(text.as_bytes())?;
            std::fs::rename(&beside, &path)
        };
        write().map_err(|error| broken(&path, &error.to_string()))
    }

    pub fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<_> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "there are none yet".into() } else { known.join(", ") };
            let message = format!("no context {name:?}; known are: {known}");
            errors::hinted(FailureKind::NotFound, message, "add it: ostler context add NAME --server URL")
        })
    }

    fn put(&mut self, name: &str, context: Context) -> Result<String, Failure> {
        ostler_protocol::ids::name("the context's name", name)?;
        let said = format!("context {name:?} names {}", context.server);
        self.contexts.insert(name.to_owned(), context);
        self.current.get_or_insert_with(|| name.to_owned());
        Ok(said)
    }

    fn choose(&mut self, name: &str) -> Result<String, Failure> {
        let said = format!("context {name:?} is the current one: {}", self.get(name)?.server);
        self.current = Some(name.to_owned());
        Ok(said)
    }

    fn remove(&mut self, name: &str) -> Result<String, Failure> {
        self.get(name)?;
        self.contexts.remove(name);
        self.current = self.current.take().filter(|current| current != name);
        Ok(format!("context {name:?} is forgotten"))
    }
}

/// Where contexts are kept.
pub fn file() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("ostler/contexts.toml"))
}

fn broken(path: &Path, why: &str) -> Failure {
    let message = format!("{}: {}", path.display(), line(why, 300));
    errors::usage(message, "mend or remove the file; `ostler context add` writes it anew")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(server: &str) -> Context {
        Context { server: server.into(), token_file: None, data_dir: None, tenant: None }
    }

    #[test]
    fn the_first_context_becomes_the_current_one() {
        let mut all = Contexts::default();
        all.put("lab", named("http://a")).unwrap();
        all.put("prod", named("http://b")).unwrap();
        assert_eq!(all.current.as_deref(), Some("lab"));
        all.choose("prod").unwrap();
        assert_eq!(all.current.as_deref(), Some("prod"));
        all.remove("prod").unwrap();
        assert_eq!((all.current.as_deref(), all.contexts.len()), (None, 1));
    }

    #[test]
    fn the_file_reads_back_as_it_was_written() {
        let mut all = Contexts::default();
        all.put("lab", Context { token_file: Some("/t".into()), tenant: Some("hwlab".into()), ..named("http://a") })
            .unwrap();
        assert_eq!(Contexts::parse(&toml::to_string(&all).unwrap()).unwrap(), all);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let mut all = Contexts::default();
        all.put("lab", named("http://a")).unwrap();
        assert_eq!(all.choose("lob").unwrap_err().message, "no context \"lob\"; known are: lab");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(Contexts::parse("[contexts.a]\nserver = \"x\"\ntoken = \"secret\"\n").is_err());
    }
}
