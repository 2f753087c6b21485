//! `ostler tokens`: service tokens, for the operator. A new token is printed on stdout only, and cannot be shown again.

use clap::{ArgGroup, Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, Timestamp,
    ids::{TokenId, prefix_range},
    limits::PAGE_ITEMS_MAX,
    tokens::{CreateToken, ListTokens, ServiceToken, TokenRole},
};

use crate::{
    candidates,
    commands::list::{ListFlags, Listing, all_pages},
    connection::Connection,
    errors, exit_codes, targets,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        table::Column,
        times::{age, now, parse_ms},
    },
};

/// Make, list and revoke service tokens
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tokens create ci --tenant acme\n  ostler tokens list\n  \
    ostler tokens revoke tok_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d")]
pub(crate) struct TokensArgs {
    #[command(subcommand)]
    verb: TokensVerb,
}

#[derive(Subcommand, Debug)]
enum TokensVerb {
    Create(CreateTokenArgs),
    List(ListTokensArgs),
    Revoke(RevokeTokenArgs),
}

/// Make a service token; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tokens create ci --tenant acme\n  \
    ostler tokens create pool --role runner --tenant acme --expires-in 90d\n  \
    ostler tokens create keys --role provide --tenant acme\n  \
    ostler tokens create prometheus --role metrics\n  \
    OSTLER_TOKEN=$(ostler tokens create nightly --tenant local) ostler ps")]
#[command(group(ArgGroup::new("owner").args(["tenants", "operator_profiles"])))]
struct CreateTokenArgs {
    /// A name for people
    name: String,
    /// A tenant it is valid for; can be repeated
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
    /// With the role `provide`: for the operator's profiles instead of a tenant's. Such a token controls which programs run
    /// on the server
    #[arg(long)]
    operator_profiles: bool,
    /// Clients submit work, runners execute it, `provide` manages provider profiles, `metrics` reads `/metrics` and has no tenant
    #[arg(long, value_enum, default_value = "client")]
    role: RoleFlag,
    /// Its lifetime: 90s, 15m, 12h, 30d [default: unlimited]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleFlag {
    Client,
    Runner,
    Provide,
    Metrics,
}

/// List service tokens, newest first; never the tokens themselves
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tokens list\n  ostler tokens list -o jsonl | jq -r .tokenId")]
struct ListTokensArgs {
    #[command(flatten)]
    list: ListFlags,
}

/// Revoke a service token; it stops working at once
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler tokens revoke tok_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d --yes")]
struct RevokeTokenArgs {
    /// The token's id, the beginning of it, or its name, from `ostler tokens list`
    #[arg(value_name = "TOKEN", add = candidates::tokens())]
    token_id: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn tokens(connection: &Connection, args: &TokensArgs) -> Result<u8, Failure> {
    match &args.verb {
        TokensVerb::Create(args) => create(connection, args).await,
        TokensVerb::List(args) => list(connection, args).await,
        TokensVerb::Revoke(args) => revoke(connection, args).await,
    }
}

async fn create(connection: &Connection, args: &CreateTokenArgs) -> Result<u8, Failure> {
    check_role(args)?;
    let request = CreateToken {
        name: args.name.clone(),
        role: match args.role {
            RoleFlag::Client => TokenRole::Client,
            RoleFlag::Runner => TokenRole::Runner,
            RoleFlag::Provide => TokenRole::Provide,
            RoleFlag::Metrics => TokenRole::Metrics,
        },
        tenants: args.tenants.clone(),
        expires_in_ms: args.expires_in,
        idempotency_key: None,
    };
    let created = connection.client()?.create_token(&request).await?;
    args.output.one(&created, || format!("{}\n", created.token));
    let token_id = created.service_token.token_id;
    output::message(&format!(
        "token {token_id} made; it is not shown again, and only its hash is stored\nrevoke it: {} tokens revoke {token_id}\n",
        connection.invocation()
    ));
    Ok(exit_codes::OK)
}

/// Only profiles can belong to the operator, and only metrics to no tenant.
fn check_role(args: &CreateTokenArgs) -> Result<(), Failure> {
    let has_owner = args.operator_profiles || !args.tenants.is_empty();
    match args.role {
        RoleFlag::Metrics if has_owner => {
            let message = "a token of the role metrics is for no tenant";
            return Err(errors::usage(message, "leave out `--tenant` and `--operator-profiles`"));
        }
        RoleFlag::Client | RoleFlag::Runner | RoleFlag::Provide if !has_owner => {
            let message =
                "the token is for no tenant: --tenant or, with the role provide, --operator-profiles is missing";
            return Err(errors::usage(message, "name a tenant with `--tenant TENANT`"));
        }
        _ => {}
    }
    if args.operator_profiles && !matches!(args.role, RoleFlag::Provide) {
        let message = "--operator-profiles is for tokens of the role provide";
        return Err(errors::usage(message, "add `--role provide`, or name a tenant with `--tenant`"));
    }
    Ok(())
}

async fn list(connection: &Connection, args: &ListTokensArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let page = connection.client()?.list_tokens(&ListTokens { limit: Some(limit), cursor: None }).await?;
    TOKENS.print(&page.tokens, page.next_cursor.is_some(), times, output)
}

async fn revoke(connection: &Connection, args: &RevokeTokenArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let token = find(&client, &args.token_id).await?;
    let (id, name) = (token.token_id.to_string(), line(&token.name, 200));
    output::message(&format!("  token {id} · {name} · {}\n", state(&token, now())));
    if !args.confirm.ask("revoke this?")? {
        return Ok(exit_codes::OK);
    }
    let revoked = client.revoke_token(&id).await?;
    args.output.one(&revoked, || format!("{} revoked\n", revoked.token_id));
    Ok(exit_codes::OK)
}

/// Finds a token by its id, the beginning of it, or its name. Fails if several match.
async fn find(client: &Client, word: &str) -> Result<ServiceToken, Failure> {
    let word = word.trim_end_matches('…');
    let unknown = || errors::listed_by(targets::unknown("token", word), "ostler tokens list");
    let prefix = prefix_range(TokenId::PREFIX, word).map(|(prefix, _)| prefix);
    let fits = |token: &ServiceToken| {
        let begins = prefix.as_ref().is_some_and(|prefix| token.token_id.to_string().starts_with(prefix));
        begins || token.name == word
    };
    let all = all_pages(async |cursor| {
        let page = client.list_tokens(&ListTokens { limit: Some(PAGE_ITEMS_MAX), cursor }).await?;
        Ok((page.tokens, page.next_cursor))
    });
    let found: Vec<ServiceToken> = all.await?.into_iter().filter(fits).collect();
    let candidate = |token: &ServiceToken| {
        (token.token_id.to_string(), format!("{} · {}", line(&token.name, 200), state(token, now())))
    };
    let id = targets::one(word, "token", found.iter().map(candidate).collect())?.ok_or_else(unknown)?;
    found.into_iter().find(|token| token.token_id.to_string() == id).ok_or_else(unknown)
}

const TOKENS: Listing<ServiceToken> = Listing {
    nothing: "no service tokens; make one: ostler tokens create NAME --tenant TENANT\n",
    columns: &[
        Column::whole("TOKEN"),
        Column::text(4, "NAME"),
        Column::spare(2, "ROLE"),
        Column::text(3, "TENANTS"),
        Column::whole("STATE"),
        Column::spare(1, "MADE"),
    ],
    row: |token, times, now| {
        vec![
            token.token_id.to_string(),
            line(&token.name, 200),
            token.role.as_str().to_owned(),
            match (token.role, token.tenants.is_empty()) {
                (TokenRole::Metrics, _) => "(none)".into(),
                (_, true) => "(operator)".into(),
                (_, false) => line(&token.tenants.join(","), 200),
            },
            state(token, now),
            times.ago(token.created_at, now),
        ]
    },
};

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
    use crate::terminal::times::Times;

    #[test]
    fn the_table_shows_whether_a_token_is_valid() {
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
        let text = TOKENS.render(&tokens, Times::default(), now, None);
        let states: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().nth(4).unwrap()).collect();
        assert_eq!(states, ["good", "expired", "revoked"], "{text}");
        assert_eq!(state(&token("expiresAt", "2030-01-02T06:00:00Z"), now), "good for 6h");
    }

    #[test]
    fn a_token_is_for_a_tenant_or_for_the_operators_profiles() {
        use clap::Parser;
        let parse = |more: &[&str]| crate::Cli::try_parse_from([&["ostler", "tokens", "create", "x"], more].concat());
        assert!(parse(&["--tenant", "a", "--operator-profiles"]).is_err());
        assert!(parse(&["--tenant", "a", "--tenant", "b"]).is_ok());
        assert!(parse(&["--role", "provide", "--operator-profiles"]).is_ok());
        let args = |role, operator_profiles| CreateTokenArgs {
            name: "x".into(),
            tenants: vec![],
            operator_profiles,
            role,
            expires_in: None,
            output: Output::new(Default::default(), Default::default()),
        };
        assert!(check_role(&args(RoleFlag::Provide, true)).is_ok());
        assert!(check_role(&args(RoleFlag::Client, true)).unwrap_err().message.contains("role provide"));
        for role in [RoleFlag::Provide, RoleFlag::Client] {
            let message = check_role(&args(role, false)).unwrap_err().message;
            assert!(message.contains("--tenant") && message.contains("--operator-profiles"), "{message}");
        }
        assert!(check_role(&args(RoleFlag::Metrics, false)).is_ok());
        assert!(check_role(&args(RoleFlag::Metrics, true)).is_err());
    }
}
