//! `ostler config`: every setting, its value and its origin, of this command line and of a server that would be started here.
//! The values of secrets are never printed.

use clap::Subcommand;
use ostler_protocol::Failure;
use serde::Serialize;
use serde_json::Value;

use crate::{
    commands::serve::{ServerFlags, dialects},
    connection::{Connection, Settings},
    context_file, exit_codes,
    terminal::{
        output::{self, Output, line},
        table::{Column, table},
    },
};

/// Show every setting and its origin
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler config show")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Subcommand, Debug)]
enum ConfigVerb {
    Show(ShowConfigArgs),
}

/// Show every setting, its value and its origin
///
/// `cli` settings decide which server this command line talks to, and how. The others are those of a server started here
/// with the same flags. A key `section.key` can be set in the file, or as OSTLER_SECTION__KEY.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler config show\n  ostler config show --config ostler.toml runner\n  \
    ostler config show -o json | jq '.[] | select(.origin != \"default\")'")]
struct ShowConfigArgs {
    #[arg(value_name = "PREFIX", help = "Only keys with this prefix, such as `cli` or `limits.`")]
    prefix: Option<String>,
    #[command(flatten)]
    flags: ServerFlags,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, PartialEq, Serialize)]
struct SettingRow {
    key: String,
    value: Value,
    origin: String,
}

pub(crate) fn config(connection: &Connection, args: &ConfigArgs) -> Result<u8, Failure> {
    let ConfigVerb::Show(args) = &args.verb;
    let mut all = of_cli(&connection.settings()?);
    let (file, overrides) = args.flags.overrides(connection);
    all.extend(
        ostler_server::config::settings::explain(file, overrides, &dialects().sections())?
            .into_iter()
            .map(|setting| SettingRow { key: setting.key, value: setting.value, origin: setting.origin.to_string() }),
    );
    all.retain(|setting| args.prefix.as_ref().is_none_or(|prefix| setting.key.starts_with(prefix.as_str())));
    args.output.many(&all, || render(&all, output::width()));
    if all.is_empty() {
        output::message("no such settings\n");
    }
    Ok(exit_codes::OK)
}

/// The settings by which this command line finds its server.
fn of_cli(settings: &Settings) -> Vec<SettingRow> {
    let setting = |key: &str, value: Value, origin: String| SettingRow { key: format!("cli.{key}"), value, origin };
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
    // Otherwise the server chooses it.
    let (tenant_origin, tenant) = match &settings.tenant {
        Some(tenant) => (tenant.origin.to_string(), tenant.value.clone().into()),
        None => nothing(),
    };
    let (token_origin, token) = match &settings.token {
        Some(origin) => (origin.to_string(), "(hidden)".into()),
        None => nothing(),
    };
    let contexts = context_file::file().map(|file| file.display().to_string().into()).unwrap_or_default();
    vec![
        setting("context", context, context_origin),
        setting("contexts_file", contexts, "default".into()),
        setting("data_dir", dir, dir_origin),
        setting("server", line(&settings.server.value, 200).into(), settings.server.origin.to_string()),
        setting("tenant", tenant, tenant_origin),
        setting("token", token, token_origin),
    ]
}

/// A table; on a terminal that is too narrow for it a paragraph for each setting, because a value that is cut is of no use.
fn render(all: &[SettingRow], width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = rows(all).collect();
    let columns = [Column::whole("KEY"), Column::whole("VALUE"), Column::whole("ORIGIN")];
    let whole = table(&columns, rows.clone(), None);
    match width {
        Some(width) if whole.lines().any(|line| output::columns(line) > width) => {
            let lines = rows.iter().map(|row| format!("{} = {} ({})\n", row[0], row[1], row[2]));
            output::folded(&lines.collect::<String>(), Some(width))
        }
        _ => whole,
    }
}

/// The key, the value and the origin of each.
fn rows(all: &[SettingRow]) -> impl Iterator<Item = Vec<String>> {
    all.iter().map(|setting| {
        let value = match &setting.value {
            Value::Null => "-".into(),
            Value::String(text) => line(text, 200),
            other => line(&other.to_string(), 200),
        };
        vec![setting.key.clone(), value, line(&setting.origin, 200)]
    })
}
