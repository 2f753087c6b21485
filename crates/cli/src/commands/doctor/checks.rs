//! One check, how it is printed, and the report that collects checks.

use ostler_protocol::{Failure, FailureKind};
use serde::Serialize;
use tokio::time::Duration;

use crate::{
    errors,
    terminal::{
        output::{self, line},
        paint::Paint,
    },
};

/// How long to wait for a response. Readiness takes 2 s at most, even if the store hangs.
const RESPONSE_WAIT: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckState {
    Ok,
    Warn,
    Fail,
    /// Could not be checked from here.
    Skip,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: CheckState,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn of(name: &'static str, state: CheckState, found: impl Into<String>, fix: &str) -> Self {
        let fix = (state != CheckState::Ok && !fix.is_empty()).then(|| fix.to_owned());
        Self { name, state, found: found.into(), fix }
    }

    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::of(name, CheckState::Ok, found, "")
    }
}

/// The finished checks. As text, each one is printed as soon as it is finished.
pub(super) struct DoctorReport {
    pub(super) checks: Vec<Check>,
    pub(super) is_text: bool,
}

impl DoctorReport {
    pub(super) fn extend(&mut self, checks: impl IntoIterator<Item = Check>) {
        for check in checks {
            if self.is_text {
                output::data(&render(&check, output::width(), Paint::stdout()));
            }
            self.checks.push(check);
        }
    }
}

/// Limits the wait for a response, because a server whose store hangs may never respond.
pub(super) async fn within<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(RESPONSE_WAIT, call).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the server did not respond within {} s", RESPONSE_WAIT.as_secs());
            Err(Failure::new(FailureKind::Overloaded, message))
        }
    }
}

pub(super) fn of_failure(name: &'static str, failure: &Failure) -> Check {
    Check::of(name, CheckState::Fail, line(&failure.message, 400), &errors::hint_of(failure).unwrap_or_default())
}

pub(super) fn worst(fails: bool, warns: bool) -> CheckState {
    match (fails, warns) {
        (true, _) => CheckState::Fail,
        (false, true) => CheckState::Warn,
        (false, false) => CheckState::Ok,
    }
}

/// The column at which the text of a check begins.
const MARGIN: usize = 18;

pub(super) fn render(check: &Check, width: Option<usize>, paint: Paint) -> String {
    let (word, painted) = match check.state {
        CheckState::Ok => ("ok", paint.green("ok")),
        CheckState::Warn => ("warn", paint.yellow("warn")),
        CheckState::Fail => ("fail", paint.red("fail")),
        CheckState::Skip => ("skip", paint.dim("skip")),
    };
    let gap = " ".repeat(6 - word.len());
    // On a terminal, words are wrapped at the margin and stay in their column.
    let column = |text: &str| match width {
        None => text.to_owned(),
        Some(width) => {
            let lines = output::wrapped_around_commands(text, width.saturating_sub(MARGIN).max(20));
            lines.join(&format!("\n{:MARGIN$}", ""))
        }
    };
    let fix = check.fix.as_ref().map(|fix| format!("{:MARGIN$}{}\n", "", column(&format!("fix: {fix}"))));
    // A name that is wider than its column is still followed by a space.
    format!("{painted}{gap}{:<11} {}\n{}", check.name, column(&check.found), fix.unwrap_or_default())
}
