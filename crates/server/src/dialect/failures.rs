//! How a dialect writes its failures.

use ostler_protocol::{Failure, failures::Problem};
use serde::Serialize;

#[derive(Clone, Copy)]
pub struct FailureEncoder {
    /// The failure as the dialect names it. Applied before it is counted and logged.
    pub translate: fn(Failure) -> Failure,
    /// The body of the response, as JSON. The problem is redacted; of the failure only its kind and rule may be used.
    pub encode: fn(&Failure, Problem) -> String,
    /// The name of the body's schema in the OpenAPI document.
    pub schema: &'static str,
}

impl FailureEncoder {
    /// A problem of RFC 9457.
    pub const PLAIN: Self =
        Self { translate: |failure| failure, encode: |_, problem| encoded(&problem), schema: "Problem" };
}

/// A dialect's own body as JSON.
pub fn encoded(body: &impl Serialize) -> String {
    serde_json::to_string(body).expect("our own types serialise")
}
