//! Switching the toggles of a test's server on and off.

use ostler_daemon::config::DaemonSection;
use ostler_protocol::capabilities::Toggle;
use ostler_server::net::rates::Rates;

use super::gate::PAGE_ORIGIN;
use crate::{daemon::acted_agent, harness::Setup};

/// Switches off what is on by default.
pub fn switch_off_defaults(setup: &mut Setup) {
    setup.config.change(|daemon: &mut DaemonSection| (daemon.settings, daemon.reload) = (false, false));
    setup.config.mcp.no_pool = true;
}

pub fn switch_on(setup: &mut Setup, toggle: Toggle) {
    match toggle {
        Toggle::RequireAuth => setup.config.server.require_auth = true,
        Toggle::AllowOrigin => setup.config.server.allow_origins = vec![PAGE_ORIGIN.into()],
        Toggle::RateLimit => {
            // The clock stands still here, so no bucket refills.
            let plenty = Rates { submit_burst: 10_000, read_burst: 10_000, ..Rates::default() };
            setup.config.rate_limit = Rates { on: true, ..plenty };
            setup.config.change(|daemon: &mut DaemonSection| {
                (daemon.rate_prompts_max, daemon.rate_mutations_max, daemon.rate_reads_max) = (10_000, 10_000, 10_000);
            });
        }
        Toggle::PromptDeadline => {
            setup.config.change(|daemon: &mut DaemonSection| daemon.prompt_deadline_ms = Some(60_000));
        }
        Toggle::WriterIdle => {
            setup.config.change(|daemon: &mut DaemonSection| daemon.writer_idle_timeout_ms = Some(300));
        }
        Toggle::Workspace => drop(setup.bind_workspace()),
        Toggle::Settings => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.settings = true);
        }
        Toggle::Agent => acted_agent::choose(setup),
        // Every profile of these tests has a model.
        Toggle::SideQueries => {}
        Toggle::Reload => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.reload = true);
        }
        Toggle::McpPool => setup.config.mcp.no_pool = false,
        Toggle::SessionShell => {
            setup.bind_workspace();
            setup.config.change(|daemon: &mut DaemonSection| daemon.session_shell = true);
        }
    }
}

/// These toggles, and those without which they cannot be on.
pub fn with_implied(on: &[Toggle]) -> Vec<Toggle> {
    let bound = [Toggle::Settings, Toggle::Reload, Toggle::Agent, Toggle::SessionShell];
    let needs_workspace = bound.iter().any(|toggle| on.contains(toggle));
    let implied = needs_workspace.then_some(Toggle::Workspace);
    on.iter().copied().chain(implied).chain([Toggle::SideQueries]).collect()
}
