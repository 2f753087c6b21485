//! Every target for a bounded number of cases, the same in every run. `cargo xtask fuzz` goes on where this ends.

use ostler_fuzz::Target;

#[track_caller]
fn try_cases(name: &str, count: usize) {
    let Some(target) = Target::find(name) else { panic!("there is no target {name}") };
    for (number, case) in target.cases(0).take(count) {
        if let Err(error) = target.try_one(number, &case) {
            panic!("{error}");
        }
    }
}

#[test]
fn frames_of_strangers_are_read_or_refused() {
    try_cases("frame", 40_000);
}

#[test]
fn bent_envelopes_open_to_what_was_sealed_or_not_at_all() {
    try_cases("envelope", 4_000);
}

#[test]
fn descriptions_of_strangers_keep_the_limits_or_are_refused() {
    try_cases("agent-md", 20_000);
}

#[test]
fn bent_certificates_are_not_believed() {
    try_cases("certificate", 4_000);
}

#[test]
fn paths_of_strangers_stay_inside_the_workspace() {
    try_cases("path", 40_000);
}

#[test]
fn patterns_of_strangers_match_inside_the_workspace() {
    try_cases("glob", 5_000);
}

#[test]
fn prompts_of_strangers_are_read_within_bounds_or_refused_by_a_rule() {
    try_cases("prompt", 20_000);
}
