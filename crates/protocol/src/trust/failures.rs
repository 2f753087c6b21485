//! Failures of the trust dialect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::failures::{Problem, RULE};

/// A problem of RFC 9457, and the same again as the trust dialect writes it.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TrustProblem {
    #[serde(flatten)]
    pub problem: Problem,
    pub error: TrustError,
}

/// A failure in the trust dialect.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TrustError {
    /// The rule that was broken, or else the kind of failure: `SCOPE_UNKNOWN`, `NOT_FOUND`.
    pub code: String,
    pub message: String,
    /// Where a client finds its own words for it.
    pub i18n_key: String,
    #[schema(value_type = Object)]
    pub params: Map<String, Value>,
}

impl From<Problem> for TrustProblem {
    fn from(problem: Problem) -> Self {
        let rule = problem.details.get(RULE).and_then(Value::as_str).unwrap_or(problem.failure_kind.as_str());
        let name = rule.replace('-', "_");
        let (message, params) = (problem.message.clone(), problem.details.clone());
        let (code, i18n_key) = (name.to_ascii_uppercase(), format!("errors.{name}"));
        Self { problem, error: TrustError { code, message, i18n_key, params } }
    }
}
