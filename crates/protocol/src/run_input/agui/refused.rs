//! Why an input does not fit.

use std::borrow::Cow;

use crate::{Failure, Rule};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputRefused {
    pub rule: Rule,
    pub detail: Cow<'static, str>,
    /// An answer to an interrupt is malformed.
    pub is_of_resume: bool,
}

impl InputRefused {
    pub(super) fn new(rule: Rule, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { rule, detail: detail.into(), is_of_resume: false }
    }

    pub(super) fn resume(detail: impl Into<Cow<'static, str>>) -> Self {
        Self { is_of_resume: true, ..Self::new(Rule::AgentRunInputInvalid, detail) }
    }
}

impl From<InputRefused> for Failure {
    /// The code is the failure's rule, except for answers to interrupts, whose rules have names of their own.
    fn from(refused: InputRefused) -> Self {
        if refused.is_of_resume {
            return Failure::rule(Rule::InterruptAnswer, refused.detail);
        }
        Failure::rule(refused.rule, refused.detail)
    }
}

pub(super) fn refuse_if(wrong: bool, rule: Rule, detail: &'static str) -> Result<(), InputRefused> {
    if wrong { Err(InputRefused::new(rule, detail)) } else { Ok(()) }
}
