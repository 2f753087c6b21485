//! `ostler whoami`: whose token this is and what it may do, on which server, and where both come from.

use ostler_protocol::{Failure, callers::CallerView};
use serde::Serialize;

use crate::{
    connection::{Connection, Settings},
    exit_codes,
    terminal::output::{self, Output, line},
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
    /// The tenant of new runs: the configured one, else the one that the server chooses. `None` if there is none.
    tenant: Option<String>,
    /// `None` if the server chooses the tenant.
    tenant_from: Option<String>,
}

pub(crate) async fn whoami(connection: &Connection, args: &WhoamiArgs) -> Result<u8, Failure> {
    let settings = connection.settings()?;
    let caller = connection.client()?.caller().await?;
    let found = identification(caller, &settings);
    args.output.one(&found, || render(&found));
    Ok(exit_codes::OK)
}

fn identification(caller: CallerView, settings: &Settings) -> Identification {
    let configured = settings.tenant.as_ref();
    Identification {
        tenant: configured.map(|tenant| tenant.value.clone()).or_else(|| caller.default_tenant.clone()),
        tenant_from: configured.map(|tenant| tenant.origin.to_string()),
        caller,
        server: settings.server.value.clone(),
        server_from: settings.server.origin.to_string(),
        context: settings.context.as_ref().map(|context| context.value.clone()),
        token_from: settings.token.as_ref().map(ToString::to_string),
    }
}

fn render(found: &Identification) -> String {
    let caller = &found.caller;
    let tenants = match &caller.tenants {
        None if caller.known_tenants.is_empty() => "every tenant".to_owned(),
        None => format!("every tenant: {}", line(&caller.known_tenants.join(", "), 400)),
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
        ("new runs", new_runs(found)),
    ];
    let text: String = fields.into_iter().map(|(name, value)| format!("{name:<9}{value}\n")).collect();
    output::folded(&text, output::width())
}

/// Which tenant a new run gets, or why it would be rejected.
fn new_runs(found: &Identification) -> String {
    let caller = &found.caller;
    if !caller.access.iter().any(|access| access == "submit") {
        return "not with this token".to_owned();
    }
    let from = found.tenant_from.as_ref().map(|from| format!(" (from {from})")).unwrap_or_default();
    match &found.tenant {
        None => "name their tenant with `--tenant`, OSTLER_TENANT or a context".to_owned(),
        Some(tenant) => {
            let is_own = caller.tenants.as_ref().is_none_or(|own| own.contains(tenant));
            let tenant = line(tenant, 200);
            match is_own {
                true => format!("for the tenant {tenant}{from}"),
                false => format!("are rejected: the token is not for the tenant {tenant}{from}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a client token of these tenants finds, with a tenant that the environment names.
    fn found(tenants: &[&str], default_tenant: Option<&str>, configured: Option<&str>) -> Identification {
        let caller = json!({"kind": "service", "name": "service:tok_1", "role": "client", "tenants": tenants,
            "defaultTenant": default_tenant, "access": ["browse", "read", "submit"]});
        let caller: CallerView = serde_json::from_value(caller).unwrap();
        Identification {
            tenant: configured.map(str::to_owned).or_else(|| caller.default_tenant.clone()),
            tenant_from: configured.map(|_| "environment OSTLER_TENANT".to_owned()),
            caller,
            server: "http://127.0.0.1:4747".into(),
            server_from: "default".into(),
            context: None,
            token_from: Some("environment OSTLER_TOKEN".into()),
        }
    }

    #[test]
    fn the_caller_is_shown_with_its_origin() {
        assert_eq!(
            render(&found(&["hwlab"], Some("hwlab"), None)),
            "caller   service:tok_1 (service, client token)\ntenants  hwlab\nmay      browse, read, submit\n\
             server   http://127.0.0.1:4747 (from default)\ncontext  -\ntoken    from environment OSTLER_TOKEN\n\
             new runs for the tenant hwlab\n"
        );
    }

    #[test]
    fn the_tenant_of_new_runs_is_the_one_that_they_get() {
        let both = &["unidesk", "hwlab"];
        assert_eq!(
            new_runs(&found(both, None, Some("hwlab"))),
            "for the tenant hwlab (from environment OSTLER_TENANT)"
        );
        assert_eq!(
            new_runs(&found(both, None, Some("local"))),
            "are rejected: the token is not for the tenant local (from environment OSTLER_TENANT)"
        );
        assert_eq!(new_runs(&found(both, None, None)), "name their tenant with `--tenant`, OSTLER_TENANT or a context");
        let mut runner = found(&["hwlab"], Some("hwlab"), None);
        runner.caller.access = vec!["run".to_owned()];
        assert_eq!(new_runs(&runner), "not with this token");
    }
}
