//! `ostler whoami`: whose token this is and what it may do, on which server, and where both come from.

use ostler_protocol::{Failure, callers::CallerView};
use serde::Serialize;

use crate::{
    connection::{Connection, Settings},
    exit_codes,
    terminal::output::{Output, line},
};

/// Show whose token is used, what it may do, and which server it is for
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler whoami\n  ostler --context lab whoami\n  ostler whoami -o json | jq -r .name"
)]
pub(crate) struct WhoamiArgs {
    #[command(flatten)]
    output: Output,
}

/// The caller as the server sees it, and the origin of what was sent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Identification {
    #[serde(flatten)]
    caller: CallerView,
    server: String,
    server_from: String,
    context: Option<String>,
    /// `None` if no token was sent.
    token_from: Option<String>,
    /// The tenant of new work.
    tenant: String,
}

pub(crate) async fn whoami(connection: &Connection, args: &WhoamiArgs) -> Result<u8, Failure> {
    let settings = connection.settings()?;
    let caller = connection.client()?.caller().await?;
    let found = identification(caller, &settings);
    args.output.one(&found, || render(&found));
    Ok(exit_codes::OK)
}

fn identification(caller: CallerView, settings: &Settings) -> Identification {
    Identification {
        caller,
        server: settings.server.value.clone(),
        server_from: settings.server.origin.to_string(),
        context: settings.context.as_ref().map(|context| context.value.clone()),
        token_from: settings.token.as_ref().map(ToString::to_string),
        tenant: settings.tenant.value.clone(),
    }
}

fn render(found: &Identification) -> String {
    let caller = &found.caller;
    let tenants = match &caller.tenants {
        None => "every tenant".to_owned(),
        Some(tenants) if tenants.is_empty() => "none".to_owned(),
        Some(tenants) => line(&tenants.join(", "), 400),
    };
    let role = caller.role.map(|role| format!(", {} token", role.as_str())).unwrap_or_default();
    let fields = [
        ("caller", format!("{} ({}{role})", line(&caller.name, 200), caller.kind.as_str())),
        ("tenants", tenants),
        ("may", line(&caller.access.join(", "), 400)),
        ("server", format!("{} (from {})", line(&found.server, 200), found.server_from)),
        ("context", found.context.as_deref().map_or_else(|| "-".to_owned(), |context| line(context, 200))),
        ("token", found.token_from.as_ref().map_or_else(|| "none".to_owned(), |from| format!("from {from}"))),
        ("new runs", format!("for the tenant {}", line(&found.tenant, 200))),
    ];
    fields.into_iter().map(|(name, value)| format!("{name:<9}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_caller_is_shown_with_its_origin() {
        let caller = json!({"kind": "service", "name": "service:tok_1", "role": "client", "tenants": ["hwlab"],
            "access": ["browse", "read", "submit"]});
        let found = Identification {
            caller: serde_json::from_value(caller).unwrap(),
            server: "http://127.0.0.1:4747".into(),
            server_from: "default".into(),
            context: None,
            token_from: Some("environment OSTLER_TOKEN".into()),
            tenant: "local".into(),
        };
        assert_eq!(
            render(&found),
            "caller   service:tok_1 (service, client token)\ntenants  hwlab\nmay      browse, read, submit\n\
             server   http://127.0.0.1:4747 (from default)\ncontext  -\ntoken    from environment OSTLER_TOKEN\n\
             new runs for the tenant local\n"
        );
    }
}
