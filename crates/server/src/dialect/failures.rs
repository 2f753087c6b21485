//! How a dialect writes its failures.

use ostler_protocol::{Failure, failures::Problem};
use serde_json::Value;

#[derive(Clone, Copy)]
pub struct FailureEncoder {
    /// The failure as the dialect names it. Applied before it is counted and logged.
    pub translate: fn(Failure) -> Failure,
    /// The body of the response. The problem is redacted; of the failure only its kind and rule may be used.
    pub encode: fn(&Failure, Problem) -> Value,
    /// The name of the body's schema in the OpenAPI document.
    pub schema: &'static str,
}

impl FailureEncoder {
    /// A problem of RFC 9457.
    pub const PLAIN: Self =
        Self { translate: |failure| failure, encode: |_, problem| json(&problem), schema: "Problem" };
}

/// The JSON of a dialect's own body.
fn json(body: &impl serde::Serialize) -> Value {
    serde_json::to_value(body).expect("our own types serialise")
}
