//! The `Status` objects with which the API server refuses a request, worded as the real one words them.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::Response,
};
use serde_json::{Value, json};

use super::resources::ApiResource;

/// A refused request.
#[derive(Clone, Debug)]
pub(super) struct ApiFailure {
    pub code: u16,
    reason: &'static str,
    message: String,
    details: Value,
    /// A token with which a list can be continued although its snapshot has expired.
    continues: Option<String>,
}

impl ApiFailure {
    fn new(code: u16, reason: &'static str, message: String, details: Value) -> Self {
        Self { code, reason, message, details, continues: None }
    }

    fn of(code: u16, reason: &'static str, resource: &ApiResource, name: &str, message: String) -> Self {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        Self::new(code, reason, message, details)
    }

    pub(super) fn not_found(resource: &ApiResource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified(resource.plural));
        Self::of(404, "NotFound", resource, name, message)
    }

    pub(super) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self::new(404, "NotFound", message, json!({}))
    }

    pub(super) fn already_exists(resource: &ApiResource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified(resource.plural));
        Self::of(409, "AlreadyExists", resource, name, message)
    }

    /// The object was changed since the version that the request names.
    pub(super) fn conflict(resource: &ApiResource, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your changes \
             to the latest version and try again",
            resource.qualified(resource.plural)
        );
        Self::of(409, "Conflict", resource, name, message)
    }

    /// The object is another one of the same name.
    pub(super) fn wrong_uid(resource: &ApiResource, name: &str, expected: &str, found: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the UID in the precondition ({expected}) does not match \
             the UID in record ({found}). The object might have been deleted and then recreated",
            resource.qualified(resource.kind)
        );
        Self::of(409, "Conflict", resource, name, message)
    }

    /// Fields that other managers own have other values. Each row: the manager and the field.
    pub(super) fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let listed: Vec<String> =
            conflicts.iter().map(|(by, field)| format!("conflict with \"{by}\": {field}")).collect();
        let plural = if conflicts.len() == 1 { "" } else { "s" };
        let message = format!("Apply failed with {} conflict{plural}: {}", conflicts.len(), listed.join(", "));
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|(by, field)| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with \"{by}\""), "field": field})
            })
            .collect();
        Self::new(409, "Conflict", message, json!({"causes": causes}))
    }

    /// `problem` as the real server words it: `Required value`, `Invalid value: "x": must be …`.
    pub(super) fn invalid(resource: &ApiResource, name: &str, field: &str, problem: &str) -> Self {
        let reason = match problem {
            problem if problem.starts_with("Required") => "FieldValueRequired",
            problem if problem.starts_with("Forbidden") => "FieldValueForbidden",
            _ => "FieldValueInvalid",
        };
        let message = format!("{} \"{name}\" is invalid: {field}: {problem}", resource.qualified(resource.kind));
        let mut failure = Self::of(422, "Invalid", resource, name, message);
        failure.details["kind"] = json!(resource.kind);
        failure.details["causes"] = json!([{"reason": reason, "message": problem, "field": field}]);
        failure
    }

    pub(super) fn no_field_manager() -> Self {
        let problem = "Required value: is required for apply patch";
        let cause = json!({"reason": "FieldValueRequired", "message": problem, "field": "fieldManager"});
        let message = format!("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: {problem}");
        let details = json!({"group": "meta.k8s.io", "kind": "PatchOptions", "causes": [cause]});
        Self::new(422, "Invalid", message, details)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into(), Value::Null)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned(), Value::Null)
    }

    pub(super) fn forbidden(
        user: &str,
        verb: &str,
        counted_as: &str,
        group: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Self {
        let place = match namespace {
            Some(namespace) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let plural = counted_as.split('/').next().unwrap_or_default();
        let qualified = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let subject = if name.is_empty() { qualified } else { format!("{qualified} \"{name}\"") };
        let message = format!(
            "{subject} is forbidden: User \"{user}\" cannot {verb} resource \"{counted_as}\" in API group \"{group}\" {place}"
        );
        let details = json!({"name": name, "group": group, "kind": plural});
        Self::new(403, "Forbidden", message, details)
    }

    /// A namespace with a quota of one object of the kind.
    pub(super) fn quota_exceeded(resource: &ApiResource, name: &str) -> Self {
        let counted = resource.qualified(resource.plural);
        let message = format!(
            "{counted} \"{name}\" is forbidden: exceeded quota: objects, requested: count/{counted}=1, used: count/{counted}=1, \
             limited: count/{counted}=1"
        );
        Self::of(403, "Forbidden", resource, name, message)
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self::new(405, "MethodNotAllowed", message, json!({}))
    }

    pub(super) fn unsupported_media_type() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type".to_owned(), json!({}))
    }

    /// A watch from a version that was compacted.
    pub(super) fn too_old(requested: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {requested} ({oldest})");
        Self::new(410, "Expired", message, Value::Null)
    }

    /// A list that is continued after its snapshot was compacted.
    pub(super) fn expired_list(continues: String) -> Self {
        let message =
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
                       list without the continue parameter, or use the continue token in this response to retrieve the \
                       remainder of the results."
                .to_owned();
        Self { continues: Some(continues), ..Self::new(410, "Expired", message, Value::Null) }
    }

    pub(super) fn too_many_requests(retry_after_s: u32) -> Self {
        let message = "Too many requests, please try again later.".to_owned();
        Self::new(429, "TooManyRequests", message, json!({"retryAfterSeconds": retry_after_s}))
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message.into(), json!({}))
    }

    pub(super) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(continues) = &self.continues {
            status["metadata"]["continue"] = json!(continues);
        }
        status
    }

    pub(super) fn to_response(&self) -> Response {
        let mut response = json_response(self.code, &self.to_json());
        if let Some(seconds) = self.details.get("retryAfterSeconds").and_then(Value::as_u64) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

pub(super) fn json_response(code: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
