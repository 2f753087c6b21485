//! The real Codex behind a real server, with a scripted provider on loopback: a self-test with a real backend process, not
//! acceptance with a real provider. Each test runs with resident runners and with runner processes.

mod approvals;
mod crashes;
mod endings;
mod turns;

/// Makes two tests of each function: one per launcher.
macro_rules! with_both_launchers {
    ($($name:ident),* $(,)?) => {
        mod resident { $(#[test] fn $name() { super::$name("resident") })* }
        mod process { $(#[test] fn $name() { super::$name("process") })* }
    };
}
pub(crate) use with_both_launchers;
