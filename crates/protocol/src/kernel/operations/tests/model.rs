//! A model check of jobs, leases and commands: every interleaving of launchers, runners, a sweeper and a client within
//! small bounds, where any request or answer can be lost and any process can crash. The states are those of the real
//! kernel, and the launchers follow the real rules (`launching`).
//!
//! Checked for every reachable state: from here on, the system's own actions can still finish everything. Checked for
//! every step: a command ends once, only the live lease's current epoch writes, epochs only grow, and a job is started
//! a bounded number of times.
//!
//! This is no crate's model checker because the property is not one that they check: they look for paths on which
//! something never happens, while here every state must have a path on which it does.

mod explore;
mod world;

use explore::{Explored, explore};
use world::{Action, Answer, Rules, Setting, World};

use crate::kernel::runner_jobs::Launcher;

fn setting() -> Setting {
    Setting {
        rules: Rules::Current,
        launcher: Launcher::Resident,
        standing: false,
        servers: 1,
        second_turn: false,
        cancels: false,
        has_time_limit: false,
    }
}

fn check(setting: Setting) -> Explored {
    let explored = explore(World::new(setting));
    if let Some(stuck) = &explored.stuck {
        panic!("{} states; nothing can end any more after {stuck:#?}", explored.states);
    }
    println!("{} states, {} of them ends: {setting:?}", explored.states, explored.ends);
    explored
}

#[test]
fn every_state_of_one_server_can_reach_an_end() {
    let explored = check(Setting { cancels: true, ..setting() });
    assert!(explored.states > 100 && explored.ends > 10, "{explored:?}");
}

#[test]
fn every_state_of_two_servers_can_reach_an_end() {
    check(Setting { servers: 2, cancels: true, ..setting() });
}

#[test]
fn every_state_with_runners_that_outlive_their_server_can_reach_an_end() {
    check(Setting { launcher: Launcher::Process, cancels: true, ..setting() });
}

#[test]
fn every_state_of_a_standing_job_can_reach_an_end() {
    check(Setting { standing: true, second_turn: true, ..setting() });
}

#[test]
fn every_state_of_a_standing_job_with_a_time_limit_can_reach_an_end() {
    let limited = Setting { launcher: Launcher::Kubernetes, has_time_limit: true, ..setting() };
    check(Setting { standing: true, second_turn: true, ..limited });
}

/// The rules before launchers kept track of what they run: a heartbeat vouched for every row of its owner.
#[test]
fn the_check_finds_the_wedge_of_a_heartbeat_by_owner() {
    let explored = explore(World::new(Setting { rules: Rules::ByOwner, ..setting() }));
    let stuck = explored.stuck.expect("a job that no runner has is vouched for");
    let lost = |action: &Action| matches!(action, Action::FinishJob(_, answer) | Action::ClaimJob(_, answer) if *answer != Answer::Received);
    assert!(stuck.iter().any(lost), "{stuck:?}");
}

/// Repeating reports is not enough: a claim whose answer comes too late leaves the same wedge.
#[test]
fn the_check_finds_the_wedge_of_a_heartbeat_by_owner_even_when_reports_are_repeated() {
    let explored = explore(World::new(Setting { rules: Rules::ByOwnerRepeating, ..setting() }));
    let stuck = explored.stuck.expect("a job that was claimed without an answer is vouched for");
    assert!(stuck.iter().any(|action| matches!(action, Action::ClaimJob(_, Answer::Lost))), "{stuck:?}");
}
