//! Switching the toggles of a test's server on and off.

use std::collections::BTreeSet;

use ostler_daemon::{config::DaemonSection, toggles};
use ostler_protocol::capabilities::Toggle;
use ostler_server::net::rates::Rates;

use super::gate::PAGE_ORIGIN;
use crate::{
    daemon::shell_agent,
    harness::{Setup, dialects},
};

/// Every toggle that a capability depends on.
pub(crate) fn all() -> Vec<Toggle> {
    let all: BTreeSet<_> = dialects().capabilities().flat_map(|row| row.when).copied().collect();
    all.into_iter().collect()
}

/// Switches off what is on by default.
pub(crate) fn switch_off_defaults(setup: &mut Setup) {
    setup.config.change(|daemon: &mut DaemonSection| (daemon.settings, daemon.reload) = (false, false));
    setup.config.mcp.no_pool = true;
}

pub(crate) fn switch_on(setup: &mut Setup, toggle: Toggle) {
    match toggle {
        Toggle::REQUIRE_AUTH => setup.config.server.require_auth = true,
        Toggle::ALLOW_ORIGIN => setup.config.server.allow_origins = vec![PAGE_ORIGIN.into()],
        Toggle::RATE_LIMIT => {
            // The clock does not move here, so no bucket refills.
            let plenty = Rates { submit_burst: 10_000, read_burst: 10_000, ..Rates::default() };
            setup.config.rate_limit = Rates { on: true, ..plenty };
            setup.config.change(|daemon: &mut DaemonSection| {
                (daemon.rate_prompts_max, daemon.rate_mutations_max, daemon.rate_reads_max) = (10_000, 10_000, 10_000);
            });
        }
        toggles::PROMPT_DEADLINE => {
            setup.config.change(|daemon: &mut DaemonSection| daemon.prompt_deadline_ms = Some(60_000));
        }
        toggles::WRITER_IDLE => {
            setup.config.change(|daemon: &mut DaemonSection| daemon.writer_idle_timeout_ms = Some(300));
        }
        toggles::WORKSPACE => drop(setup.bind_workspace()),
        toggles::SETTINGS => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.settings = true);
        }
        toggles::AGENT => shell_agent::choose(setup),
        // Every profile of these tests has a model.
        toggles::SIDE_QUERIES => {}
        toggles::RELOAD => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.reload = true);
        }
        Toggle::MCP_POOL => setup.config.mcp.no_pool = false,
        toggles::SESSION_SHELL => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.session_shell = true);
        }
        unknown => panic!("{unknown:?} has no way to switch it on here"),
    }
}

/// These toggles, and those without which they cannot be on.
pub(crate) fn with_implied(on: &[Toggle]) -> Vec<Toggle> {
    let bound = [toggles::SETTINGS, toggles::RELOAD, toggles::AGENT, toggles::SESSION_SHELL];
    let needs_workspace = bound.iter().any(|toggle| on.contains(toggle));
    let implied = needs_workspace.then_some(toggles::WORKSPACE);
    on.iter().copied().chain(implied).chain([toggles::SIDE_QUERIES]).collect()
}
