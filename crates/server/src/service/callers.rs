//! Callers: who the server takes a caller for.

use ostler_protocol::callers::{CallerAction, CallerKind, CallerView};

use crate::{
    app::App,
    auth::{Access, Principal},
};

/// The tenant of people who work alone.
const LOCAL: &str = "local";

/// The caller itself. Every caller with a token may ask.
pub fn get(app: &App, caller: &Principal) -> CallerView {
    let (kind, role) = match caller {
        Principal::Operator => (CallerKind::Operator, None),
        Principal::Service { role, .. } => (CallerKind::Service, Some(*role)),
        Principal::User { .. } => (CallerKind::User, None),
        Principal::Agent { .. } => (CallerKind::Agent, None),
        Principal::Runner { .. } => (CallerKind::Runner, None),
    };
    let actions: Vec<_> = Access::ALL.into_iter().filter_map(|access| action(access, caller)).collect();
    let known_tenants = own_tenants(&app.config.policy.tenants, caller);
    CallerView {
        kind,
        name: caller.name(),
        role,
        tenants: caller.tenants().map(<[String]>::to_vec),
        default_tenant: default_tenant(&known_tenants),
        known_tenants,
        access: actions.iter().filter(|action| action.allowed).map(|action| action.action.clone()).collect(),
        actions,
        owner_id: caller.owner().ok(),
    }
}

/// Whether the caller has this access. `None` for access that every caller has.
fn action(access: Access, caller: &Principal) -> Option<CallerAction> {
    let description = access.description()?.to_owned();
    let refusal = access.admit(caller).err();
    Some(CallerAction {
        action: access.as_str().to_owned(),
        description,
        allowed: refusal.is_none(),
        reason: refusal.map(|refusal| refusal.message),
    })
}

/// The tenants of this server that the caller may name.
fn own_tenants(all: &[String], caller: &Principal) -> Vec<String> {
    all.iter().filter(|tenant| caller.tenants().is_none_or(|own| own.contains(tenant))).cloned().collect()
}

/// The tenant that work of this caller is for if the client names none. Only an unambiguous one is chosen: work of one tenant
/// is visible to all its members.
fn default_tenant(own: &[String]) -> Option<String> {
    match own {
        [only] => Some(only.clone()),
        _ => own.iter().find(|tenant| *tenant == LOCAL).cloned(),
    }
}
