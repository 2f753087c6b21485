//! Failures of the run input dialect.

use serde::{Deserialize, Serialize};

use super::runs::code;
use crate::{Failure, failures::Problem};

/// A problem of RFC 9457 with the dialect's own code.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RunInputProblem {
    #[serde(flatten)]
    pub problem: Problem,
    /// The dialect's own stable name of the failure.
    pub code: String,
}

impl RunInputProblem {
    pub fn new(failure: &Failure, problem: Problem) -> Self {
        Self { problem, code: code(failure).into_owned() }
    }
}
