//! The access that each operation requires of its caller, read from the descriptions of the handlers. A path that declares no
//! access is closed to every caller.

use std::{collections::HashMap, sync::OnceLock};

use http::Method;
use ostler_protocol::{Failure, FailureKind};
use serde_json::Value;
use utoipa::openapi::{
    OpenApi,
    security::{Http, HttpAuthScheme, SecurityScheme},
};

use super::api_router::DescribedRoute;
use crate::{
    auth::Access,
    dialect::{Dialects, FailureEncoder, GateRules, SharedPaths},
};

/// The security scheme of our own tokens, as the document names it. Dialects may have others.
const SCHEME: &str = "token";

#[derive(Default)]
pub struct AccessTable {
    paths: HashMap<String, PathRoutes>,
    /// Security schemes of dialects, and the access that each grants.
    schemes: Vec<(&'static str, Access)>,
}

struct PathRoutes {
    methods: Vec<MethodAccess>,
    failures: FailureEncoder,
    /// The encoding of rejections at the gate, on a path that a dialect shares. `None`: the same as of other failures.
    rejections: Option<FailureEncoder>,
    rules: Option<&'static GateRules>,
}

struct MethodAccess {
    method: Method,
    /// Without one, the access was set.
    route: Option<DescribedRoute>,
    /// Read from the route's description by the first request. `None`: it declares none.
    access: OnceLock<Option<Access>>,
}

impl MethodAccess {
    fn get(&self, schemes: &[(&str, Access)]) -> Option<Access> {
        *self.access.get_or_init(|| {
            // The fields of `security` are private, so it is read in its JSON form.
            let security = serde_json::to_value(&self.route?.operation().security).unwrap_or_default();
            declared(&security, schemes)
        })
    }
}

/// The access that the route of a request requires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RouteAccess {
    Requires(Access),
    /// The path exists, without this method.
    OtherMethod,
    /// The path declares no access.
    Closed,
}

impl AccessTable {
    pub(crate) fn new(dialects: &Dialects) -> Self {
        let schemes = dialects.iter().flat_map(|dialect| &dialect.security);
        Self { paths: HashMap::new(), schemes: schemes.map(|scheme| (scheme.name, scheme.access)).collect() }
    }

    /// Adds described operations, with the failure encoding of their dialect.
    pub(crate) fn add(&mut self, routes: &[DescribedRoute], failures: FailureEncoder) {
        for route in routes {
            let path = route.path();
            for method in route.methods() {
                let access = OnceLock::new();
                self.insert(&path, MethodAccess { method, route: Some(*route), access }, failures);
            }
        }
    }

    /// Adds a path that is not an operation of the document, or that requires less than it declares there.
    pub(crate) fn add_route(&mut self, method: Method, path: &str, access: Access, failures: FailureEncoder) {
        self.insert(path, MethodAccess { method, route: None, access: OnceLock::from(Some(access)) }, failures);
    }

    fn insert(&mut self, path: &str, added: MethodAccess, failures: FailureEncoder) {
        let empty = || PathRoutes { methods: vec![], failures, rejections: None, rules: None };
        let found = self.paths.entry(path.to_owned()).or_insert_with(empty);
        found.methods.retain(|existing| existing.method != added.method);
        found.methods.push(added);
    }

    /// Adds a path without an operation. It requires no more than a path that does not exist.
    pub(crate) fn add_unknown(&mut self, path: &str, failures: FailureEncoder, rules: Option<&'static GateRules>) {
        self.paths.insert(path.to_owned(), PathRoutes { methods: vec![], failures, rejections: None, rules });
    }

    /// Applies the rules of its dialect to the path of every route.
    pub(crate) fn apply(&mut self, routes: &[DescribedRoute], rules: &'static GateRules) {
        for route in routes {
            if let Some(found) = self.paths.get_mut(&route.path()) {
                found.rules = Some(rules);
            }
        }
    }

    /// Lets a dialect share paths of the engine. The gate rejects requests to them as it does on the dialect's own paths.
    pub(crate) fn share(&mut self, shared: SharedPaths, rejections: FailureEncoder, rules: Option<&'static GateRules>) {
        for path in shared.paths {
            if let Some(found) = self.paths.get_mut(*path) {
                found.failures = shared.failures;
                found.rejections = Some(rejections);
                found.rules = rules;
            }
        }
    }

    /// The rules of the dialect that the path belongs to, or that shares it.
    pub(crate) fn rules(&self, path: Option<&str>) -> Option<&'static GateRules> {
        path.and_then(|path| self.paths.get(path)).and_then(|path| path.rules)
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> RouteAccess {
        // HEAD is GET without the body of the response.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let Some(PathRoutes { methods, .. }) = self.paths.get(path) else { return RouteAccess::Closed };
        let access_of = |route: &MethodAccess| route.get(&self.schemes);
        match methods.iter().find(|route| route.method == *method).and_then(access_of) {
            Some(access) => RouteAccess::Requires(access),
            None if methods.is_empty() || methods.iter().any(|route| access_of(route).is_some()) => {
                RouteAccess::OtherMethod
            }
            None => RouteAccess::Closed,
        }
    }

    /// How failures of the route with this path are encoded. A path that does not exist belongs to no dialect.
    pub(crate) fn failures(&self, path: Option<&str>) -> FailureEncoder {
        path.and_then(|path| self.paths.get(path)).map_or(FailureEncoder::PLAIN, |path| path.failures)
    }

    /// Whether the path is the engine's, and a dialect shares it.
    pub(crate) fn is_shared(&self, path: Option<&str>) -> bool {
        self.rejections(path).is_some()
    }

    /// How the gate's rejections (401 and 403) of requests to this path are encoded, if not as its other failures.
    pub(crate) fn rejections(&self, path: Option<&str>) -> Option<FailureEncoder> {
        path.and_then(|path| self.paths.get(path)).and_then(|path| path.rejections)
    }

    /// How this failure of a request to this path is encoded.
    pub(crate) fn encoder(&self, path: Option<&str>, failure: Option<&Failure>) -> FailureEncoder {
        let kind = failure.map(|failure| failure.kind);
        let is_rejection = matches!(kind, Some(FailureKind::Unauthenticated | FailureKind::OriginDenied));
        let rejections = self.rejections(path).filter(|_| is_rejection);
        rejections.unwrap_or_else(|| self.failures(path))
    }
}

/// `[{"token": ["read"]}]`; an empty requirement is a public one.
fn declared(security: &Value, schemes: &[(&str, Access)]) -> Option<Access> {
    let (requirement, is_optional) = match security.as_array()?.as_slice() {
        [requirement] => (requirement, false),
        [requirement, Value::Object(none)] if none.is_empty() => (requirement, true),
        _ => return None,
    };
    let found = schemes
        .iter()
        .find(|(name, _)| requirement[*name].is_array() && requirement.as_object().is_some_and(|all| all.len() == 1));
    match found {
        Some((_, access)) if !is_optional || *access == Access::Anonymous => return Some(*access),
        _ if is_optional => return None,
        _ => {}
    }
    match (requirement.as_object()?.is_empty(), &requirement[SCHEME]) {
        (true, _) => Some(Access::Public),
        (false, Value::Array(names)) => match names.as_slice() {
            [Value::String(name)] => Access::parse(name),
            _ => None,
        },
        _ => None,
    }
}

/// Describes the token in the document.
pub(crate) fn describe(document: &mut OpenApi, dialects: &Dialects) {
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description = Some(
        "The operator's token, a service token, a user's JWT, an agent's or a runner's token. The role named by an operation determines \
         who may call it: `browse` every caller with a tenant, `read` also the run's own runner, `submit` clients and \
         users, `own` users, `inspect` clients and services of the role `provide`, `provide` the latter, `run` runners, `operate` the operator. The operator may call everything."
            .into(),
    );
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    for scheme in dialects.iter().flat_map(|dialect| &dialect.security) {
        components.add_security_scheme(scheme.name, (scheme.scheme)());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_route_without_a_clear_declaration_is_closed() {
        for unclear in [
            Value::Null,
            json!([]),
            json!([{"token": []}]),
            json!([{"token": ["read", "run"]}]),
            json!([{"token": ["everything"]}]),
            json!([{"token": ["read"]}, {}]),
            json!([{"signature": []}, {}]),
            json!([{"unknown": []}]),
        ] {
            assert_eq!(
                declared(&unclear, &[("mesh", Access::Anonymous), ("signature", Access::Signed)]),
                None,
                "{unclear}"
            );
        }
        let mut table = AccessTable::default();
        table.add_route(Method::GET, "/a", Access::Read, FailureEncoder::PLAIN);
        assert_eq!(table.find(&Method::HEAD, "/a"), RouteAccess::Requires(Access::Read));
        assert_eq!(table.find(&Method::POST, "/a"), RouteAccess::OtherMethod);
        assert_eq!(table.find(&Method::GET, "/b"), RouteAccess::Closed);
    }
}
