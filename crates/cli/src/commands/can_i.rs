//! `ostler can-i`: whether the token may do something, by the server's own rules. The server lists the actions, so that this
//! program needs no table of them.

use ostler_protocol::{
    Failure,
    callers::{CallerAction, CallerView},
};
use serde::Serialize;

use crate::{
    candidates,
    commands::list::Listing,
    connection::Connection,
    errors, exit_codes,
    suggestions::similar,
    terminal::{
        output::{self, Output, line},
        table::Column,
        times::{Times, now},
    },
};

/// Show whether the token may do something
///
/// Prints `yes` or `no`; the exit code is 0 for yes and 1 for no. Without an action it lists all of them. The answer is that of the
/// server; whether a certain run or session can be changed depends on that, too.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler can-i\n  ostler can-i submit\n  ostler can-i submit --tenant acme\n  \
    ostler can-i -q provide && ostler apply -f ostler.toml\n  \
    ostler can-i --jq '.[] | select(.allowed) | .action'")]
pub(crate) struct CanIArgs {
    /// What to ask about, such as `submit` [default: list every action]
    #[arg(value_name = "ACTION", add = candidates::actions())]
    action: Option<String>,
    /// In this tenant
    #[arg(long, requires = "action")]
    tenant: Option<String>,
    /// Print nothing: the exit code is the answer
    #[arg(short, long, requires = "action")]
    quiet: bool,
    #[command(flatten)]
    output: Output,
}

/// The answer about one action.
#[derive(Debug, PartialEq, Serialize)]
struct ActionAnswer {
    action: String,
    /// `None` if no tenant was named.
    tenant: Option<String>,
    allowed: bool,
    /// Why it is not allowed.
    reason: Option<String>,
}

pub(crate) async fn can_i(connection: &Connection, args: &CanIArgs) -> Result<u8, Failure> {
    let caller = connection.client()?.caller().await?;
    let Some(action) = &args.action else {
        args.output.many(&caller.actions, || ACTIONS.render(&caller.actions, Times::default(), now(), output::width()));
        return Ok(exit_codes::OK);
    };
    let answer = answer_about(&caller, action, args.tenant.as_deref())?;
    if !args.quiet {
        args.output.one(&answer, || if answer.allowed { "yes\n" } else { "no\n" }.to_owned());
        if let Some(reason) = answer.reason.as_ref().filter(|_| args.output.is_text()) {
            output::message(&format!("{}\n", line(reason, 400)));
        }
    }
    Ok(if answer.allowed { exit_codes::OK } else { exit_codes::BROKEN })
}

fn answer_about(caller: &CallerView, action: &str, tenant: Option<&str>) -> Result<ActionAnswer, Failure> {
    let found = caller.actions.iter().find(|known| known.action == action).ok_or_else(|| unknown(caller, action))?;
    // The list has the tenants of this server that the caller may name. It is empty for a caller without a tenant.
    let has_tenant = |tenant: &&str| caller.known_tenants.iter().any(|known| known == tenant);
    let other = tenant.filter(|tenant| !has_tenant(tenant));
    let reason = found.reason.clone().or_else(|| other.map(|tenant| other_tenant(caller, tenant)));
    Ok(ActionAnswer {
        action: found.action.clone(),
        tenant: tenant.map(str::to_owned),
        allowed: found.allowed && other.is_none(),
        reason,
    })
}

/// Why the caller may not name a tenant. The token may be for a tenant that has been removed from the server.
fn other_tenant(caller: &CallerView, tenant: &str) -> String {
    match &caller.tenants {
        Some(own) if !own.iter().any(|own| own == tenant) => format!("the token is not for the tenant {tenant:?}"),
        _ => format!("this server has no tenant {tenant:?}"),
    }
}

fn unknown(caller: &CallerView, action: &str) -> Failure {
    let names = caller.actions.iter().map(|known| known.action.as_str());
    let meant = similar(action, names.clone()).map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    let message = format!("there is no action {:?}{meant}", line(action, 60));
    let all: Vec<_> = names.collect();
    errors::usage(message, format!("the actions are {}; `ostler can-i` shows which are allowed", all.join(", ")))
}

const ACTIONS: Listing<CallerAction> = Listing {
    nothing: "",
    columns: &[Column::whole("ACTION"), Column::whole("ALLOWED"), Column::wrapped(1, "WHAT IT ALLOWS")],
    row: |action, _, _| {
        let allowed = if action.allowed { "yes" } else { "no" };
        vec![line(&action.action, 40), allowed.to_owned(), line(&action.description, 200)]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn caller(tenants: Value, known: &[&str]) -> CallerView {
        let actions = json!([
            {"action": "submit", "description": "submit work", "allowed": true, "reason": null},
            {"action": "operate", "description": "manage tokens", "allowed": false, "reason": "only the operator may do this"},
        ]);
        let caller = json!({"kind": "service", "name": "service:tok_1", "role": "client", "tenants": tenants,
            "knownTenants": known, "defaultTenant": null, "access": ["submit"], "actions": actions});
        serde_json::from_value(caller).unwrap()
    }

    #[test]
    fn the_answer_is_that_of_the_server() {
        let caller = caller(json!(["acme"]), &["acme"]);
        let answer = |action, tenant| {
            let answer = answer_about(&caller, action, tenant).unwrap();
            (answer.allowed, answer.reason)
        };
        assert_eq!(answer("submit", None), (true, None));
        assert_eq!(answer("submit", Some("acme")), (true, None));
        assert_eq!(answer("operate", Some("acme")), (false, Some("only the operator may do this".into())));
        let reason = "the token is not for the tenant \"other\"";
        assert_eq!(answer("submit", Some("other")), (false, Some(reason.into())));
    }

    #[test]
    fn a_tenant_of_the_token_that_the_server_no_longer_has_does_not_exist() {
        let caller = caller(json!(["acme", "gone"]), &["acme"]);
        let answer = answer_about(&caller, "submit", Some("gone")).unwrap();
        assert_eq!((answer.allowed, answer.reason.as_deref()), (false, Some("this server has no tenant \"gone\"")));
    }

    #[test]
    fn the_operator_may_name_the_tenants_of_the_server_only() {
        let caller = caller(Value::Null, &["local"]);
        assert!(answer_about(&caller, "submit", Some("local")).unwrap().allowed);
        let other = answer_about(&caller, "submit", Some("lcoal")).unwrap();
        assert_eq!((other.allowed, other.reason.as_deref()), (false, Some("this server has no tenant \"lcoal\"")));
    }

    #[test]
    fn an_unknown_action_is_answered_with_the_similar_one_and_all_of_them() {
        let failure = unknown(&caller(Value::Null, &[]), "sumbit");
        let text = errors::render(&failure, crate::terminal::paint::Paint::PLAIN);
        assert!(text.starts_with("error: there is no action \"sumbit\"; did you mean submit?\n"), "{text}");
        assert!(text.contains("hint: the actions are submit, operate;"), "{text}");
    }
}
