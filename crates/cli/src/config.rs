//! `ostler config`: every setting, its value and where that comes from, of this command line and of a server that would be
//! started here. Secrets are named, never shown.

use clap::Subcommand;
use ostler_protocol::Failure;
use serde::Serialize;
use serde_json::Value;

use crate::{
    connect::{Connection, Settings},
    contexts, exit_codes,
    output::{self, Output, line},
    serve::ServerFlags,
    table::table,
};

/// See every setting and where it comes from
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler config show")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Show(ShowArgs),
}

/// Show every setting, its value, and where the value comes from
///
/// `cli` settings say which server this command line talks to, and how. The others are those of a server started here with
/// the same flags. A key `section.key` can be set in the file, or as OSTLER_SECTION__KEY.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler config show\n  ostler config show --config ostler.toml runner\n  \
    ostler config show -o json | jq '.[] | select(.origin != \"default\")'")]
struct ShowArgs {
    #[arg(value_name = "PREFIX", help = "Only keys that begin like this, such as `cli` or `limits.`")]
    prefix: Option<String>,
    #[command(flatten)]
    flags: ServerFlags,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, PartialEq, Serialize)]
struct Shown {
    key: String,
    value: Value,
    origin: String,
}

pub fn config(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let Verb::Show(args) = &args.verb;
    let mut all = of_cli(&connection.settings()?);
    let (file, overrides) = args.flags.overrides(connection);
    all.extend(ostler_server::settings::explain(file, overrides)?.into_iter().map(|setting| Shown {
        key: setting.key,
        value: setting.value,
        origin: setting.origin.to_string(),
    }));
    all.retain(|shown| args.prefix.as_ref().is_none_or(|prefix| shown.key.starts_with(prefix.as_str())));
    args.output.many(&all, || render(&all, output::width()));
    if all.is_empty() {
        output::words("no such settings\n");
    }
    Ok(exit_codes::OK)
}

/// How this command line finds its server.
fn of_cli(settings: &Settings) -> Vec<Shown> {
    let shown = |key: &str, value: Value, origin: String| Shown { key: format!("cli.{key}"), value, origin };
    let nothing = || ("default".to_owned(), Value::Null);
    let (context_origin, context) = match &settings.context {
        Some(context) => {
            (context.origin.to_string().replace("default", "current context"), context.value.clone().into())
        }
        None => nothing(),
    };
    let (dir_origin, dir) = match &settings.data_dir {
        Some(dir) => (dir.origin.to_string(), dir.value.display().to_string().into()),
        None => nothing(),
    };
    let (token_origin, token) = match &settings.token {
        Some(origin) => (origin.to_string(), "(hidden)".into()),
        None => nothing(),
    };
    let contexts = contexts::file().map(|file| file.display().to_string().into()).unwrap_or_default();
    vec![
        shown("context", context, context_origin),
        shown("contexts_file", contexts, "default".into()),
        shown("data_dir", dir, dir_origin),
        shown("server", line(&settings.server.value, 200).into(), settings.server.origin.to_string()),
        shown("tenant", settings.tenant.value.clone().into(), settings.tenant.origin.to_string()),
        shown("token", token, token_origin),
    ]
}

fn render(all: &[Shown], width: Option<usize>) -> String {
    let rows = all.iter().map(|shown| {
        let value = match &shown.value {
            Value::Null => "-".into(),
            Value::String(text) => line(text, 200),
            other => line(&other.to_string(), 200),
        };
        vec![shown.key.clone(), value, line(&shown.origin, 200)]
    });
    table(&["KEY", "VALUE", "ORIGIN"], rows.collect(), &[1, 2], width)
}
