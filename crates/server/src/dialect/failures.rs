//! How a dialect writes its failures.

use ostler_protocol::{Failure, failures::Problem, json::text_of};
use serde::Serialize;

#[derive(Clone, Copy)]
pub struct FailureEncoder {
    /// The failure as the dialect names it. Applied before it is counted and logged.
    pub translate: fn(Failure) -> Failure,
    /// The body of the response, as JSON, made from the redacted problem.
    pub encode: fn(Problem) -> String,
    /// The content type of the body.
    pub content_type: &'static str,
    /// The name of the body's schema in the OpenAPI document.
    pub schema: &'static str,
}

/// The content type of problems of RFC 9457.
pub const PROBLEM_JSON: &str = "application/problem+json";

impl FailureEncoder {
    /// A problem of RFC 9457.
    pub const PLAIN: Self = Self {
        translate: |failure| failure,
        encode: |problem| encoded(&problem),
        content_type: PROBLEM_JSON,
        schema: "Problem",
    };
}

/// A dialect's own body as JSON.
pub fn encoded(body: &impl Serialize) -> String {
    text_of(body)
}
