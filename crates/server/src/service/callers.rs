//! Callers: who the server takes a caller for.

use ostler_protocol::callers::{CallerKind, CallerView};

use crate::auth::{Access, Principal};

/// The caller itself. Every caller with a token may ask.
pub fn get(caller: &Principal) -> CallerView {
    let (kind, role) = match caller {
        Principal::Operator => (CallerKind::Operator, None),
        Principal::Service { role, .. } => (CallerKind::Service, Some(*role)),
        Principal::User { .. } => (CallerKind::User, None),
        Principal::Agent { .. } => (CallerKind::Agent, None),
        Principal::Runner { .. } => (CallerKind::Runner, None),
    };
    // Access that needs no token says nothing about the caller.
    let open = [Access::Public, Access::Signed, Access::Anonymous, Access::Identify];
    let granted = Access::ALL.into_iter().filter(|access| !open.contains(access) && access.admit(caller).is_ok());
    CallerView {
        kind,
        name: caller.name(),
        role,
        tenants: caller.tenants().map(<[String]>::to_vec),
        access: granted.map(|access| access.as_str().to_owned()).collect(),
    }
}
