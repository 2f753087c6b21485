//! `ostler contexts`: lists, adds, chooses and removes contexts, which are names for servers.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use ostler_protocol::{Failure, FailureKind, Rule};
use serde::Serialize;

use crate::{
    connection::{self, Connection},
    context_file::{ConnectionContext, Contexts},
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        list_output::ListOutput,
        output::{self, line},
        table::{Column, table},
    },
};

/// Name servers, and choose one
///
/// Contexts are stored in `contexts.toml` in the user's configuration directory. A context is used whole; with `--server` or
/// OSTLER_SERVER no context is used, so that no token is sent to another server.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler contexts add lab --server https://ostler.example --token-file lab.txt\n  \
    ostler contexts use lab\n  ostler --context lab ps")]
pub(crate) struct ContextsArgs {
    #[command(subcommand)]
    verb: ContextsVerb,
}

#[derive(Subcommand, Debug)]
enum ContextsVerb {
    List(ListContextsArgs),
    Add(AddContextArgs),
    Use(UseContextArgs),
    Remove(RemoveContextArgs),
}

/// List the contexts; the current one is marked with a star
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler contexts list\n  ostler contexts list -o json | jq -r '.[].server'")]
struct ListContextsArgs {
    #[command(flatten)]
    output: ListOutput,
}

/// Add a context, or change one
///
/// The server is the one `--server` names. The first context becomes the current one.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler contexts add lab --server https://ostler.example --token-file lab.txt\n  \
    ostler contexts add here --server http://127.0.0.1:4747 --tenant team")]
struct AddContextArgs {
    name: String,
    /// The file that holds the token for it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The tenant to run for
    #[arg(long)]
    tenant: Option<String>,
}

/// Make a context the current one, or none
///
/// With `--none` no context is used until another one is chosen: the server is the one of this machine, unless `--server` or
/// OSTLER_SERVER names another.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler contexts use lab\n  ostler contexts use --none")]
struct UseContextArgs {
    #[arg(required_unless_present = "none")]
    name: Option<String>,
    /// Use no context
    #[arg(long, conflicts_with = "name")]
    none: bool,
}

/// Remove a context
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler contexts remove lab --yes")]
struct RemoveContextArgs {
    name: String,
    #[command(flatten)]
    confirm: Confirm,
}

/// A context as it is listed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextRow<'a> {
    name: &'a str,
    current: bool,
    server: &'a str,
    token_file: Option<&'a Path>,
    data_dir: Option<&'a Path>,
    tenant: Option<&'a str>,
}

impl ContextRow<'_> {
    /// Where its token comes from. `ostler whoami --context NAME` asks the server whose it is.
    fn token_source(&self) -> String {
        let path = |path: &Path| line(&path.to_string_lossy(), 400);
        match (self.token_file, self.data_dir) {
            (Some(file), _) => path(file),
            (None, Some(directory)) => path(&directory.join("token")),
            (None, None) => "OSTLER_TOKEN, or the data directory's".to_owned(),
        }
    }
}

pub(crate) fn contexts(connection: &Connection, args: &ContextsArgs) -> Result<u8, Failure> {
    match &args.verb {
        ContextsVerb::List(args) => list(args),
        ContextsVerb::Add(args) => add(connection, args),
        ContextsVerb::Use(args) => change(|all| match &args.name {
            Some(name) => all.choose(name),
            None => Ok(all.clear_current()),
        }),
        ContextsVerb::Remove(args) => {
            Contexts::load()?.get(&args.name)?;
            if !args.confirm.ask(&format!("remove the context {:?}?", args.name))? {
                return Ok(exit_codes::OK);
            }
            change(|all| all.remove(&args.name))
        }
    }
}

fn list(args: &ListContextsArgs) -> Result<u8, Failure> {
    let all = Contexts::load()?;
    let listed = all.contexts.iter().map(|(name, context)| ContextRow {
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
            vec![
                one.name.into(),
                star.into(),
                line(one.server, 200),
                one.tenant.unwrap_or("-").into(),
                one.token_source(),
            ]
        });
        let columns = [
            Column::whole("NAME"),
            Column::whole("CURRENT"),
            Column::text(2, "SERVER"),
            Column::whole("TENANT"),
            Column::text(1, "TOKEN"),
        ];
        table(&columns, rows.collect(), output::width())
    });
    if listed.is_empty() {
        output::message("no contexts; add one: ostler contexts add NAME --server URL\n");
    }
    Ok(exit_codes::OK)
}

fn add(connection: &Connection, args: &AddContextArgs) -> Result<u8, Failure> {
    let server = connection.server_flag().ok_or_else(|| {
        errors::usage("a context needs a server", "name it: ostler contexts add NAME --server http://127.0.0.1:4747")
    })?;
    connection::check_address(server)?;
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(Failure::internal);
    args.token_file.as_deref().map(check_private).transpose()?;
    let context = ConnectionContext {
        server: server.to_owned(),
        token_file: args.token_file.as_ref().map(absolute).transpose()?,
        data_dir: connection.data_dir_flag().map(absolute).transpose()?,
        tenant: args.tenant.clone(),
    };
    change(|all| all.put(&args.name, context))
}

/// Rejects a token that other users of the machine can read. The file may be written later.
fn check_private(file: &Path) -> Result<(), Failure> {
    let Ok(metadata) = file.metadata() else { return Ok(()) };
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("{} can be read by others", file.display());
    Err(Failure::rule(Rule::TokenFileMode, message).with_kind(FailureKind::SchemaInvalid))
}

/// Reads the file, applies the change, writes the file, and prints the message that `change` returns.
fn change(change: impl FnOnce(&mut Contexts) -> Result<String, Failure>) -> Result<u8, Failure> {
    let mut all = Contexts::load()?;
    let message = change(&mut all)?;
    all.save()?;
    output::message(&format!("{message}\n"));
    Ok(exit_codes::OK)
}
