//! `ostler token`: service tokens, for the operator. A new token goes to stdout and nowhere else; nobody can show it again.

use clap::{ArgGroup, Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::{TokenId, prefix_range},
    limits::PAGE_ITEMS_MAX,
    tokens::{CreateToken, ListTokens, ServiceToken, TokenRole},
};

use crate::{
    completions,
    confirm::Confirm,
    connect::Connection,
    errors, exit_codes,
    output::{self, Output, line},
    table::table,
    targets,
    times::{Times, age, now, parse_ms},
};

/// Make, list and revoke service tokens
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler token create ci --tenant hwlab\n  ostler token list\n  \
    ostler token revoke tok_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a service token; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler token create ci --tenant hwlab\n  \
    ostler token create pool --role runner --tenant hwlab --tenant unidesk --expires-in 90d\n  \
    ostler token create keys --role provide --tenant hwlab\n  \
    OSTLER_TOKEN=$(ostler token create nightly --tenant local) ostler ps")]
#[command(group(ArgGroup::new("owner").args(["tenants", "operator_profiles"]).required(true)))]
struct CreateArgs {
    /// What people will know it by
    name: String,
    /// A tenant it is for; can be given several times
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
    /// With the role `provide`: for the operator's profiles instead of a tenant's. Such a token decides which programs run
    /// on the server
    #[arg(long)]
    operator_profiles: bool,
    /// Clients ask for work, runners carry it out, `provide` manages provider profiles
    #[arg(long, value_enum, default_value = "client")]
    role: Role,
    /// When it ends by itself: 90s, 15m, 12h, 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Client,
    Runner,
    Provide,
}

/// List service tokens, newest first; never the tokens themselves
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler token list\n  ostler token list -o jsonl | jq -r .tokenId")]
struct ListArgs {
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Revoke a service token; it stops working at once
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler token revoke tok_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct RevokeArgs {
    /// The token's id, the beginning of it, or its name, from `ostler token list`
    #[arg(value_name = "TOKEN", add = completions::tokens())]
    token_id: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub async fn token(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Create(args) => create(connection, args).await,
        Verb::List(args) => list(connection, args).await,
        Verb::Revoke(args) => revoke(connection, args).await,
    }
}

async fn create(connection: &Connection, args: &CreateArgs) -> Result<u8, Failure> {
    check_role(args)?;
    let asked = CreateToken {
        name: args.name.clone(),
        role: match args.role {
            Role::Client => TokenRole::Client,
            Role::Runner => TokenRole::Runner,
            Role::Provide => TokenRole::Provide,
        },
        tenants: args.tenants.clone(),
        expires_in_ms: args.expires_in,
        idempotency_key: None,
    };
    let created = connection.client()?.create_token(&asked).await?;
    args.output.one(&created, || format!("{}\n", created.token));
    let token_id = created.service_token.token_id;
    output::words(&format!(
        "token {token_id} made; it is not shown again, and only its hash is kept\nrevoke it: {} token revoke {token_id}\n",
        connection.invocation()
    ));
    Ok(exit_codes::OK)
}

/// Only profiles can be the operator's.
fn check_role(args: &CreateArgs) -> Result<(), Failure> {
    if args.operator_profiles && !matches!(args.role, Role::Provide) {
        let message = "--operator-profiles is for tokens of the role provide";
        return Err(errors::usage(message, "add `--role provide`, or name a tenant with `--tenant`"));
    }
    Ok(())
}

async fn list(connection: &Connection, args: &ListArgs) -> Result<u8, Failure> {
    let page = connection.client()?.list_tokens(&ListTokens { limit: Some(args.limit), cursor: None }).await?;
    let (tokens, has_more) = (&page.tokens, page.next_cursor.is_some());
    let nothing = "no service tokens; make one: ostler token create NAME --tenant TENANT\n";
    args.output.page(tokens, has_more, nothing, || render(tokens, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

async fn revoke(connection: &Connection, args: &RevokeArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let token = find(&client, &args.token_id).await?;
    let (id, name) = (token.token_id.to_string(), line(&token.name, 200));
    output::words(&format!("  token {id} · {name} · {}\n", state(&token, now())));
    if !args.confirm.ask("revoke this?")? {
        return Ok(exit_codes::OK);
    }
    let revoked = client.revoke_token(&id).await?;
    args.output.one(&revoked, || format!("{} revoked\n", revoked.token_id));
    Ok(exit_codes::OK)
}

/// By its id, the beginning of it, or its name, as long as only one is meant.
async fn find(client: &Client, word: &str) -> Result<ServiceToken, Failure> {
    let word = word.trim_end_matches('…');
    let unknown = || errors::listed_by(targets::unknown("token", word), "ostler token list");
    let prefix = prefix_range(TokenId::PREFIX, word).map(|(prefix, _)| prefix);
    let fits = |token: &ServiceToken| {
        let begins = prefix.as_ref().is_some_and(|prefix| token.token_id.to_string().starts_with(prefix));
        begins || token.name == word
    };
    let mut found: Vec<ServiceToken> = vec![];
    let mut query = ListTokens { limit: Some(PAGE_ITEMS_MAX), cursor: None };
    loop {
        let page = client.list_tokens(&query).await?;
        found.extend(page.tokens.into_iter().filter(fits));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    let standing = |token: &ServiceToken| {
        (token.token_id.to_string(), format!("{} · {}", line(&token.name, 200), state(token, now())))
    };
    let id = targets::one(word, "token", found.iter().map(standing).collect())?.ok_or_else(unknown)?;
    found.into_iter().find(|token| token.token_id.to_string() == id).ok_or_else(unknown)
}

fn render(tokens: &[ServiceToken], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = tokens.iter().map(|token| {
        vec![
            token.token_id.to_string(),
            line(&token.name, 200),
            token.role.as_str().to_owned(),
            if token.tenants.is_empty() { "(operator)".into() } else { line(&token.tenants.join(","), 200) },
            state(token, now),
            times.ago(token.created_at, now),
        ]
    });
    table(&["TOKEN", "NAME", "ROLE", "TENANTS", "STATE", "MADE"], rows.collect(), &[3, 1], width)
}

fn state(token: &ServiceToken, now: Timestamp) -> String {
    match token.expires_at {
        _ if token.revoked_at.is_some() => "revoked".into(),
        Some(end) if end <= now => "expired".into(),
        Some(end) => format!("good for {}", age(now, end)),
        None => "good".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_says_whether_a_token_is_good() {
        let token = |field: &str, at: &str| -> ServiceToken {
            let mut body = json!({"tokenId": format!("tok_{:032x}", 1), "name": "ci", "role": "client",
                "tenants": ["hwlab", "local"], "createdAt": "2030-01-01T00:00:00Z", "expiresAt": null, "revokedAt": null});
            body[field] = at.into();
            serde_json::from_value(body).unwrap()
        };
        let now = "2030-01-02T00:00:00Z".parse().unwrap();
        let tokens = [
            token("name", "ci"),
            token("expiresAt", "2030-01-01T12:00:00Z"),
            token("revokedAt", "2030-01-01T12:00:00Z"),
        ];
        let text = render(&tokens, Times::default(), now, None);
        let states: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().nth(4).unwrap()).collect();
        assert_eq!(states, ["good", "expired", "revoked"], "{text}");
        assert_eq!(state(&token("expiresAt", "2030-01-02T06:00:00Z"), now), "good for 6h");
    }

    #[test]
    fn a_token_is_for_a_tenant_or_for_the_operators_profiles() {
        use clap::Parser;
        let parse = |more: &[&str]| crate::Cli::try_parse_from([&["ostler", "token", "create", "x"], more].concat());
        for role in ["provide", "client"] {
            let message = parse(&["--role", role]).err().unwrap().to_string();
            assert!(message.contains("--tenant") && message.contains("--operator-profiles"), "{message}");
        }
        assert!(parse(&["--tenant", "a", "--operator-profiles"]).is_err());
        assert!(parse(&["--tenant", "a", "--tenant", "b"]).is_ok());
        assert!(parse(&["--role", "provide", "--operator-profiles"]).is_ok());
        let args = |role| CreateArgs {
            name: "x".into(),
            tenants: vec![],
            operator_profiles: true,
            role,
            expires_in: None,
            output: Output { format: Default::default() },
        };
        assert!(check_role(&args(Role::Provide)).is_ok());
        assert!(check_role(&args(Role::Client)).unwrap_err().message.contains("role provide"));
    }
}
