//! The doors: what each operation asks of its caller, read from the OpenAPI document that the handlers make. A path that
//! declares nothing is closed to everybody.

use std::collections::HashMap;

use http::Method;
use serde_json::Value;
use utoipa::openapi::{
    OpenApi, PathItem,
    path::Operation,
    security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme},
};

use crate::auth::Access;

/// The one way of showing who one is, as the document names it.
const SCHEME: &str = "token";
/// … but for URLs that carry their proof.
const SIGNATURE: &str = "signature";
/// … and for what the mesh asks for by its own means.
const MESH: &str = "mesh";

#[derive(Default)]
pub struct Doors(HashMap<String, Vec<(Method, Access)>>);

/// What a request has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Door {
    Leads(Access),
    /// The path exists, without this method.
    OtherMethod,
    /// A path that declares nothing.
    Closed,
}

impl Doors {
    pub fn of(document: &OpenApi) -> Self {
        let mut doors = Self::default();
        for (path, item) in &document.paths.paths {
            for (method, operation) in operations(item) {
                // Its fields are private, so it is read as what it stands for in the document.
                let security = serde_json::to_value(&operation.security).unwrap_or_default();
                if let Some(access) = declared(&security) {
                    doors.add(method, path, access);
                }
            }
        }
        doors
    }

    /// For a path that is no operation of the document, or that was told to ask for less.
    pub fn with(mut self, method: Method, path: &str, access: Access) -> Self {
        self.add(method, path, access);
        self
    }

    fn add(&mut self, method: Method, path: &str, access: Access) {
        let methods = self.0.entry(path.to_owned()).or_default();
        methods.retain(|(known, _)| *known != method);
        methods.push((method, access));
    }

    pub fn find(&self, method: &Method, path: &str) -> Door {
        // A HEAD is a GET whose answer stays behind.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let Some(methods) = self.0.get(path) else { return Door::Closed };
        methods.iter().find(|(known, _)| known == method).map_or(Door::OtherMethod, |(_, access)| Door::Leads(*access))
    }
}

fn operations(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    let PathItem { get, put, post, delete, options, head, patch, trace, .. } = item;
    let by_method = [
        (Method::GET, get),
        (Method::PUT, put),
        (Method::POST, post),
        (Method::DELETE, delete),
        (Method::OPTIONS, options),
        (Method::HEAD, head),
        (Method::PATCH, patch),
        (Method::TRACE, trace),
    ];
    by_method.into_iter().filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

/// `[{"token": ["read"]}]`; an empty requirement is a public one.
fn declared(security: &Value) -> Option<Access> {
    let (requirement, is_optional) = match security.as_array()?.as_slice() {
        [requirement] => (requirement, false),
        [requirement, Value::Object(none)] if none.is_empty() => (requirement, true),
        _ => return None,
    };
    if is_optional && !requirement[MESH].is_array() {
        return None;
    }
    for (scheme, access) in [(SIGNATURE, Access::Signed), (MESH, Access::Mesh)] {
        if requirement[scheme].is_array() && requirement.as_object()?.len() == 1 {
            return Some(access);
        }
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
pub fn describe(document: &mut OpenApi) {
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    scheme.description = Some(
        "The operator's token, a service token, a user's JWT, an agent's or a runner's token. The role named by an operation says \
         who may call it: `browse` everybody with a tenant, `read` also the run's own runner, `submit` clients and \
         users, `own` users, `inspect` clients and services of the role `provide`, `provide` the latter, `run` runners, `operate` the operator. The operator may call everything."
            .into(),
    );
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    let proof = "Made by this server for one file and a while; see `expires`.";
    let signature = ApiKeyValue::with_description(SIGNATURE, proof);
    components.add_security_scheme(SIGNATURE, SecurityScheme::ApiKey(ApiKey::Query(signature)));
    let mut mesh = Http::new(HttpAuthScheme::Bearer);
    mesh.description = Some(
        "Everybody may read; whoever writes shows the access token that an agent gets when it logs in to the mesh."
            .into(),
    );
    components.add_security_scheme(MESH, SecurityScheme::Http(mesh));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_operation_has_a_door() {
        let document = crate::openapi();
        let doors = Doors::of(&crate::http::documented().split_for_parts().1);
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                let method = method.to_uppercase().parse().unwrap();
                assert!(matches!(doors.find(&method, path), Door::Leads(_)), "{method} {path} declares no `security`");
            }
        }
    }

    #[test]
    fn what_is_not_declared_plainly_is_closed() {
        for unclear in [
            Value::Null,
            json!([]),
            json!([{"token": []}]),
            json!([{"token": ["read", "run"]}]),
            json!([{"token": ["everything"]}]),
            json!([{"token": ["read"]}, {}]),
        ] {
            assert_eq!(declared(&unclear), None, "{unclear}");
        }
        let doors = Doors::default().with(Method::GET, "/a", Access::Read);
        assert_eq!(doors.find(&Method::HEAD, "/a"), Door::Leads(Access::Read));
        assert_eq!(doors.find(&Method::POST, "/a"), Door::OtherMethod);
        assert_eq!(doors.find(&Method::GET, "/b"), Door::Closed);
    }
}
