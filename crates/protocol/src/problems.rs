//! The problems of a request, gathered from checks that do not depend on each other, so that one failure names them all.

use crate::Failure;

#[derive(Default)]
pub struct Problems(Vec<Failure>);

impl Problems {
    /// The checked value. `None` if the check failed, which is noted.
    pub fn note<T>(&mut self, checked: Result<T, Failure>) -> Option<T> {
        checked.map_err(|failure| self.0.push(failure)).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if any check failed. The first failure counts, and lists the others.
    pub fn check(self) -> Result<(), Failure> {
        Failure::check_all(self.0)
    }

    /// The failure of a request with a value that did not pass its check.
    pub fn into_failure(self) -> Failure {
        self.check().err().unwrap_or_else(|| Failure::internal("a check failed without a problem"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Rule;

    fn failed(message: &str) -> Result<(), Failure> {
        Err(Failure::invalid(Rule::TitleShape, message))
    }

    #[test]
    fn one_failure_names_all_problems_also_those_of_inner_lists() {
        let mut inner = Problems::default();
        inner.note(failed("b"));
        inner.note(failed("c"));
        let mut problems = Problems::default();
        assert_eq!(problems.note(Ok(1)), Some(1));
        assert_eq!(problems.note(failed("a")), None);
        problems.note(inner.check());
        let failure = problems.into_failure();
        assert_eq!(failure.message, "a");
        let listed = Value::Object(*failure.details.unwrap())["problems"].clone();
        let messages: Vec<_> = listed.as_array().unwrap().iter().map(|problem| problem["message"].clone()).collect();
        assert_eq!(messages, [json!("a"), json!("b"), json!("c")]);
    }

    #[test]
    fn a_single_problem_is_an_ordinary_failure() {
        let mut problems = Problems::default();
        assert!(problems.is_empty());
        problems.note(failed("a"));
        let failure = problems.into_failure();
        assert_eq!(failure.message, "a");
        assert!(!failure.details.unwrap().contains_key("problems"));
        assert!(Problems::default().check().is_ok());
    }
}
