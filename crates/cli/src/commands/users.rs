//! `ostler users`: people, managed by the operator. A user's token is printed on stdout only.

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    limits::PAGE_ITEMS_MAX,
    users::{CreateUser, CreateUserToken, ListUsers, UpdateUser, User, local},
};

use crate::{
    candidates,
    commands::list::{ListFlags, Listing, all_pages},
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        shell_words::positional,
        table::Column,
        times::parse_ms,
    },
};

/// Add, list, change and remove users, and make their tokens
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users add ada --timezone Europe/Berlin\n  ostler users list\n  \
    OSTLER_TOKEN=$(ostler users token ada) ostler ps")]
pub(crate) struct UsersArgs {
    #[command(subcommand)]
    verb: UsersVerb,
}

impl UsersArgs {
    /// Whether it changes a user, which older servers cannot do.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.verb, UsersVerb::Set(_))
    }
}

#[derive(Subcommand, Debug)]
enum UsersVerb {
    Add(AddUserArgs),
    List(ListUsersArgs),
    Set(SetUserArgs),
    Token(CreateUserTokenArgs),
    Remove(RemoveUserArgs),
}

/// Add a user
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users add ada --timezone Europe/Berlin --tenant acme\n  \
    ostler users add bob --timezone UTC --issuer https://id.example --subject 4711")]
struct AddUserArgs {
    name: String,
    /// Their time zone, by its name in the time zone database: Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    timezone: String,
    /// A tenant they belong to; can be repeated [default: local]
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
    /// An issuer of the server's configuration that authenticates them [default: this server]
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
struct ListUsersArgs {
    #[command(flatten)]
    list: ListFlags,
}

/// Change a user's time zone
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users set ada --timezone America/New_York")]
struct SetUserArgs {
    #[arg(add = candidates::users())]
    name: String,
    /// Their time zone, by its name in the time zone database: Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    timezone: String,
    #[command(flatten)]
    output: Output,
}

/// Make a token for a user; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users token ada\n  ostler users token ada --expires-in 7d -o json")]
struct CreateUserTokenArgs {
    #[arg(add = candidates::users())]
    name: String,
    /// Its lifetime: 15m, 12h, 7d; 30 days at most [default: 12h]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

/// Remove a user; their tokens stop working at once
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler users remove ada --yes")]
struct RemoveUserArgs {
    #[arg(add = candidates::users())]
    name: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn users(connection: &Connection, args: &UsersArgs) -> Result<u8, Failure> {
    match &args.verb {
        UsersVerb::Add(args) => add(connection, args).await,
        UsersVerb::List(args) => list(connection, args).await,
        UsersVerb::Set(args) => set(connection, args).await,
        UsersVerb::Token(args) => token(connection, args).await,
        UsersVerb::Remove(args) => remove(connection, args).await,
    }
}

async fn add(connection: &Connection, args: &AddUserArgs) -> Result<u8, Failure> {
    let request = CreateUser {
        name: args.name.clone(),
        timezone: args.timezone.clone(),
        tenants: if args.tenants.is_empty() { local() } else { args.tenants.clone() },
        issuer: args.issuer.clone(),
        subject: args.subject.clone(),
    };
    let user = connection.client()?.create_user(&request).await.map_err(name_in_use)?;
    args.output.one(&user, || format!("{}\n", user.user_id));
    if args.issuer.is_none() {
        output::message(&format!("make a token: {} users token {}\n", connection.invocation(), positional(&user.name)));
    }
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListUsersArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let page = connection.client()?.list_users(&ListUsers { limit: Some(limit), cursor: None }).await?;
    USERS.print(&page.users, page.next_cursor.is_some(), times, output)
}

async fn set(connection: &Connection, args: &SetUserArgs) -> Result<u8, Failure> {
    let changes = UpdateUser { timezone: args.timezone.clone() };
    let user = connection.client()?.update_user(&args.name, &changes).await.map_err(missing)?;
    args.output.one(&user, || format!("{} is in {}\n", line(&user.name, 200), user.timezone));
    Ok(exit_codes::OK)
}

async fn token(connection: &Connection, args: &CreateUserTokenArgs) -> Result<u8, Failure> {
    let request = CreateUserToken { expires_in_ms: args.expires_in };
    let made = connection.client()?.create_user_token(&args.name, &request).await.map_err(missing)?;
    args.output.one(&made, || format!("{}\n", made.token));
    output::message(&format!("valid until {}; it is not stored and not shown again\n", made.expires_at));
    Ok(exit_codes::OK)
}

async fn remove(connection: &Connection, args: &RemoveUserArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    if args.confirm.dry_run && !exists(&client, &args.name).await? {
        return Err(missing(targets::unknown("user", &args.name)));
    }
    if !args.confirm.ask(&format!("remove the user {}?", line(&args.name, 80)))? {
        return Ok(exit_codes::OK);
    }
    let removed = client.remove_user(&args.name).await.map_err(missing)?;
    args.output.one(&removed, || format!("{} removed\n", line(&removed.name, 200)));
    Ok(exit_codes::OK)
}

async fn exists(client: &Client, name: &str) -> Result<bool, Failure> {
    let all = all_pages(async |cursor| {
        let page = client.list_users(&ListUsers { limit: Some(PAGE_ITEMS_MAX), cursor }).await?;
        Ok((page.users, page.next_cursor))
    });
    Ok(all.await?.iter().any(|user| user.name == name))
}

fn missing(failure: Failure) -> Failure {
    errors::listed_by(failure, "ostler users list")
}

fn name_in_use(failure: Failure) -> Failure {
    let hint = "choose another name, change the time zone with `ostler users set`, or remove the user first; `ostler users list` lists the users";
    if failure.kind == FailureKind::StateConflict { errors::with_hint(failure, hint) } else { failure }
}

const USERS: Listing<User> = Listing {
    nothing: "no users; add one: ostler users add NAME --timezone ZONE\n",
    columns: &[
        Column::whole("USER"),
        Column::text(3, "TENANTS"),
        Column::whole("TIME ZONE"),
        Column::spare(2, "ISSUER"),
        Column::spare(1, "ADDED"),
    ],
    row: |user, times, now| {
        vec![
            line(&user.name, 200),
            line(&user.tenants.join(","), 200),
            user.timezone.clone(),
            line(&user.issuer, 200),
            times.ago(user.created_at, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::terminal::times::Times;

    #[test]
    fn the_table_shows_each_user() {
        let user: User = serde_json::from_value(json!({"userId": format!("usr_{:032x}", 1), "name": "ada",
            "tenants": ["hwlab", "local"], "timezone": "Europe/Berlin", "issuer": "ostler", "subject": "s",
            "createdAt": "2030-01-01T00:00:00Z", "removedAt": null}))
        .unwrap();
        let now = "2030-01-01T02:00:00Z".parse().unwrap();
        assert_eq!(
            USERS.render(&[user], Times::default(), now, None),
            "USER  TENANTS      TIME ZONE      ISSUER  ADDED\nada   hwlab,local  Europe/Berlin  ostler  2h ago\n"
        );
    }
}
