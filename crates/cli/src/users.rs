//! `ostler users`: people, for the operator. A user's token goes to stdout and nowhere else.

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    limits::PAGE_ITEMS_MAX,
    users::{CreateUser, CreateUserToken, ListUsers, UpdateUser, User, local},
};

use crate::{
    completions,
    confirm::Confirm,
    connect::Connection,
    errors, exit_codes,
    output::{self, Output, line},
    table::table,
    targets,
    times::{Times, now, parse_ms},
};

/// Add, list, change and remove users, and make their tokens
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users add ada --timezone Europe/Berlin\n  ostler users list\n  \
    OSTLER_TOKEN=$(ostler users token ada) ostler ps")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

impl Args {
    /// Whether it changes a user, which older servers cannot do.
    pub fn is_change(&self) -> bool {
        matches!(self.verb, Verb::Set(_))
    }
}

#[derive(Subcommand, Debug)]
enum Verb {
    Add(AddArgs),
    List(ListArgs),
    Set(SetArgs),
    Token(TokenArgs),
    Remove(RemoveArgs),
}

/// Add a user
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users add ada --timezone Europe/Berlin --tenant hwlab\n  \
    ostler users add bob --timezone UTC --issuer https://id.example --subject 4711")]
struct AddArgs {
    name: String,
    /// Where they live, as the time zone database names it: Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    timezone: String,
    /// A tenant they belong to; can be given several times [default: local]
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
    /// An issuer of the server's configuration that vouches for them [default: this server]
    #[arg(long, value_name = "ISSUER", requires = "subject")]
    issuer: Option<String>,
    /// The `sub` of that issuer's tokens
    #[arg(long, value_name = "SUBJECT", requires = "issuer")]
    subject: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// List users, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users list\n  ostler users list -o jsonl | jq -r .name")]
struct ListArgs {
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Change a user's time zone
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users set ada --timezone America/New_York")]
struct SetArgs {
    #[arg(add = completions::users())]
    name: String,
    /// Where they live, as the time zone database names it: Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    timezone: String,
    #[command(flatten)]
    output: Output,
}

/// Make a token that speaks for a user; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users token ada\n  ostler users token ada --expires-in 7d -o json")]
struct TokenArgs {
    #[arg(add = completions::users())]
    name: String,
    /// When it ends: 15m, 12h, 7d; 30 days at most [default: 12h]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

/// Remove a user; their tokens stop working at once
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users remove ada --yes")]
struct RemoveArgs {
    #[arg(add = completions::users())]
    name: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub async fn users(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Add(args) => add(connection, args).await,
        Verb::List(args) => list(connection, args).await,
        Verb::Set(args) => set(connection, args).await,
        Verb::Token(args) => token(connection, args).await,
        Verb::Remove(args) => remove(connection, args).await,
    }
}

async fn add(connection: &Connection, args: &AddArgs) -> Result<u8, Failure> {
    let asked = CreateUser {
        name: args.name.clone(),
        timezone: args.timezone.clone(),
        tenants: if args.tenants.is_empty() { local() } else { args.tenants.clone() },
        issuer: args.issuer.clone(),
        subject: args.subject.clone(),
    };
    let user = connection.client()?.create_user(&asked).await.map_err(taken)?;
    args.output.one(&user, || format!("{}\n", user.user_id));
    if args.issuer.is_none() {
        output::words(&format!("make a token: {} users token {}\n", connection.invocation(), line(&user.name, 200)));
    }
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListArgs) -> Result<u8, Failure> {
    let page = connection.client()?.list_users(&ListUsers { limit: Some(args.limit), cursor: None }).await?;
    let (users, has_more) = (&page.users, page.next_cursor.is_some());
    let nothing = "no users; add one: ostler users add NAME --timezone ZONE\n";
    args.output.page(users, has_more, nothing, || render(users, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

async fn set(connection: &Connection, args: &SetArgs) -> Result<u8, Failure> {
    let changes = UpdateUser { timezone: args.timezone.clone() };
    let user = connection.client()?.update_user(&args.name, &changes).await.map_err(missing)?;
    args.output.one(&user, || format!("{} is in {}\n", line(&user.name, 200), user.timezone));
    Ok(exit_codes::OK)
}

async fn token(connection: &Connection, args: &TokenArgs) -> Result<u8, Failure> {
    let asked = CreateUserToken { expires_in_ms: args.expires_in };
    let made = connection.client()?.create_user_token(&args.name, &asked).await.map_err(missing)?;
    args.output.one(&made, || format!("{}\n", made.token));
    output::words(&format!("good until {}; it is not kept and not shown again\n", made.expires_at));
    Ok(exit_codes::OK)
}

async fn remove(connection: &Connection, args: &RemoveArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    if args.confirm.dry_run && !is_known(&client, &args.name).await? {
        return Err(missing(targets::unknown("user", &args.name)));
    }
    if !args.confirm.ask(&format!("remove the user {}?", line(&args.name, 80)))? {
        return Ok(exit_codes::OK);
    }
    let removed = client.remove_user(&args.name).await.map_err(missing)?;
    args.output.one(&removed, || format!("{} removed\n", line(&removed.name, 200)));
    Ok(exit_codes::OK)
}

async fn is_known(client: &Client, name: &str) -> Result<bool, Failure> {
    let mut query = ListUsers { limit: Some(PAGE_ITEMS_MAX), cursor: None };
    loop {
        let page = client.list_users(&query).await?;
        query.cursor = page.next_cursor;
        if page.users.iter().any(|user| user.name == name) {
            return Ok(true);
        }
        if query.cursor.is_none() {
            return Ok(false);
        }
    }
}

fn missing(failure: Failure) -> Failure {
    errors::listed_by(failure, "ostler users list")
}

fn taken(failure: Failure) -> Failure {
    let hint = "take another name, change the time zone with `ostler users set`, or remove the user first; `ostler users list` shows who is there";
    if failure.kind == FailureKind::StateConflict { errors::with_hint(failure, hint) } else { failure }
}

fn render(users: &[User], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = users.iter().map(|user| {
        vec![
            line(&user.name, 200),
            line(&user.tenants.join(","), 200),
            user.timezone.clone(),
            line(&user.issuer, 200),
            times.ago(user.created_at, now),
        ]
    });
    table(&["USER", "TENANTS", "TIME ZONE", "ISSUER", "ADDED"], rows.collect(), &[1, 3], width)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_who_is_who() {
        let user: User = serde_json::from_value(json!({"userId": format!("usr_{:032x}", 1), "name": "ada",
            "tenants": ["hwlab", "local"], "timezone": "Europe/Berlin", "issuer": "ostler", "subject": "s",
            "createdAt": "2030-01-01T00:00:00Z", "removedAt": null}))
        .unwrap();
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        assert_eq!(
            render(&[user], Times::default(), now, None),
            "USER  TENANTS      TIME ZONE      ISSUER  ADDED\nada   hwlab,local  Europe/Berlin  ostler  2h ago\n"
        );
    }
}
