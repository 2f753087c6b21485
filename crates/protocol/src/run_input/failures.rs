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

impl From<Problem> for RunInputProblem {
    fn from(problem: Problem) -> Self {
        let code = code(&Failure::from(problem.clone())).into_owned();
        Self { problem, code }
    }
}
