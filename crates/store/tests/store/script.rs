//! What may happen to a store, as a list that proptest can shrink: every reference is a small number that picks from what
//! exists when its turn comes, so that any part of a script is a script.

use ostler_protocol::kernel::runner_jobs::JobEnd;
use proptest::{collection::vec, prelude::*};

/// A reference: counted back from the newest, around and around.
pub(crate) type Pick = u8;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Submitted together, so that flushes carry many.
    Together(Vec<Ask>),
    AdvanceMs(i64),
    /// The process dies this long after these were submitted, and another opens the store.
    Crash(Vec<Ask>, u16),
}

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Blindly: by a caller that did not look whether the name and the key are known.
    CreateRun {
        name: Option<u8>,
        blindly: bool,
        key: Option<u8>,
        start: bool,
    },
    CreateSession {
        name: u8,
        key: Option<u8>,
        title: u8,
    },
    /// A title of this number; none for 0.
    Rename {
        session: Pick,
        title: u8,
    },
    Close {
        session: Pick,
    },
    /// A label of a run and of its session; an even number removes it.
    Label {
        run: Pick,
        number: u8,
    },
    CreateCommand {
        run: Pick,
        kind: u8,
        key: Option<u8>,
        text: u8,
    },
    CreateJob {
        run: Pick,
        command: Option<Pick>,
        key: Option<u8>,
        standing: bool,
    },
    ClaimJobs {
        owner: u8,
        limit: u8,
    },
    FinishJob {
        job: Pick,
        wrong_owner: bool,
        end: JobEnd,
    },
    Claim {
        run: Pick,
        runner: u8,
        lease_ms: i64,
        take_up: bool,
    },
    Heartbeat {
        run: Pick,
        who: Who,
        lease_ms: Option<i64>,
    },
    Release {
        run: Pick,
        who: Who,
        only_if_idle: bool,
    },
    Ack {
        run: Pick,
        command: Pick,
        who: Who,
    },
    Append {
        run: Pick,
        who: Who,
        batch: bool,
        release_if_idle: bool,
        events: Vec<Say>,
    },
    /// An earlier append again, as a runner sends it that missed the answer.
    Retry {
        append: Pick,
    },
    CancelRun {
        run: Pick,
    },
    CancelCommand {
        command: Pick,
    },
    Answer {
        permission: Pick,
        right_digest: bool,
        option: u8,
    },
    Dismiss {
        run: Pick,
        only_if_idle: bool,
    },
    Sweep {
        run: Pick,
        orphaned: bool,
    },
}

/// Who writes for a run: usually its last owner under the last epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    Owner,
    /// The owner, one epoch late.
    Stale,
    Runner(u8),
}

#[derive(Clone, Debug)]
pub(crate) enum Say {
    Message { command: Pick, is_final: bool },
    Tool { command: Pick, call: u8, status: u8 },
    Output { command: Pick },
    Usage { command: Pick, cents: u16 },
    Phase { command: Pick, phase: u8 },
    Error { command: Pick },
    Thread,
    Ask { command: Pick, wait_ms: i64, reuse: bool, well_formed: bool },
    EndCommand { command: Pick, status: u8 },
    EndRun { status: u8 },
}

pub(crate) fn script(steps: usize) -> impl Strategy<Value = Vec<Step>> {
    // Every script starts where something can happen.
    let start = Just(Step::Together(vec![Ask::CreateRun { name: Some(0), key: None, start: true, blindly: false }]));
    (start, vec(step(), 1..steps * 2)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    })
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => vec(ask(), 1..2).prop_map(Step::Together),
        12 => vec(ask(), 2..9).prop_map(Step::Together),
        2 => (1_i64..200).prop_map(Step::AdvanceMs),
        2 => (400_i64..3_000).prop_map(Step::AdvanceMs),
        1 => (vec(ask(), 0..6), 0_u16..4_000).prop_map(|(asks, us)| Step::Crash(asks, us)),
    ]
}

fn key() -> impl Strategy<Value = Option<u8>> {
    prop_oneof![3 => Just(None), 2 => (0_u8..3).prop_map(Some)]
}

fn run() -> impl Strategy<Value = Pick> {
    prop_oneof![4 => Just(0_u8), 2 => Just(1_u8), 1 => 2_u8..6]
}

fn command() -> impl Strategy<Value = Pick> {
    prop_oneof![5 => Just(0_u8), 3 => Just(1_u8), 1 => 2_u8..5]
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![12 => Just(Who::Owner), 1 => Just(Who::Stale), 1 => (0_u8..3).prop_map(Who::Runner)]
}

fn job_end() -> impl Strategy<Value = JobEnd> {
    use JobEnd::*;
    prop_oneof![2 => Just(Succeeded), 1 => Just(Failed), 1 => Just(Returned), 1 => Just(Overdue), 1 => Just(Lost)]
}

fn lease_ms() -> impl Strategy<Value = i64> {
    prop_oneof![1 => 10_i64..100, 3 => 500_i64..2_000]
}

fn ask() -> impl Strategy<Value = Ask> {
    let any_option = proptest::option::weighted(0.7, 0_u8..2);
    prop_oneof![
        3 => (any_option, key(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(name, key, start, blindly)| Ask::CreateRun { name, key, start, blindly }),
        1 => (0_u8..4, key(), 0_u8..2).prop_map(|(name, key, title)| Ask::CreateSession { name, key, title }),
        2 => (0_u8..3, 0_u8..3).prop_map(|(session, title)| Ask::Rename { session, title }),
        1 => (0_u8..6, proptest::bool::weighted(0.15)).prop_map(|(session, really)| {
            if really { Ask::Close { session } } else { Ask::Rename { session, title: 2 } }
        }),
        2 => (run(), 0_u8..4).prop_map(|(run, number)| Ask::Label { run, number }),
        5 => (run(), 0_u8..6, key(), 0_u8..2)
            .prop_map(|(run, kind, key, text)| Ask::CreateCommand { run, kind, key, text }),
        3 => (run(), proptest::option::of(command()), proptest::option::weighted(0.7, 0_u8..2), any::<bool>())
            .prop_map(|(run, command, key, standing)| Ask::CreateJob { run, command, key, standing }),
        2 => (0_u8..2, 1_u8..4).prop_map(|(owner, limit)| Ask::ClaimJobs { owner, limit }),
        2 => (0_u8..3, proptest::bool::weighted(0.2), job_end())
            .prop_map(|(job, wrong_owner, end)| Ask::FinishJob { job, wrong_owner, end }),
        4 => (run(), 0_u8..3, lease_ms(), any::<bool>())
            .prop_map(|(run, runner, lease_ms, take_up)| Ask::Claim { run, runner, lease_ms, take_up }),
        2 => (run(), who(), proptest::option::of(lease_ms()))
            .prop_map(|(run, who, lease_ms)| Ask::Heartbeat { run, who, lease_ms }),
        2 => (run(), who(), any::<bool>())
            .prop_map(|(run, who, only_if_idle)| Ask::Release { run, who, only_if_idle }),
        4 => (run(), command(), who()).prop_map(|(run, command, who)| Ask::Ack { run, command, who }),
        12 => (run(), who(), any::<bool>(), proptest::bool::weighted(0.3), vec(say(), 1..5)).prop_map(
            |(run, who, batch, release_if_idle, events)| Ask::Append { run, who, batch, release_if_idle, events }
        ),
        3 => (0_u8..5).prop_map(|append| Ask::Retry { append }),
        1 => (run(), proptest::bool::weighted(0.25)).prop_map(|(run, really)| {
            if really { Ask::CancelRun { run } } else { Ask::Claim { run, runner: 0, lease_ms: 900, take_up: true } }
        }),
        1 => (0_u8..5).prop_map(|command| Ask::CancelCommand { command }),
        4 => (0_u8..5, proptest::bool::weighted(0.7), 0_u8..3)
            .prop_map(|(permission, right_digest, option)| Ask::Answer { permission, right_digest, option }),
        1 => (run(), any::<bool>()).prop_map(|(run, only_if_idle)| Ask::Dismiss { run, only_if_idle }),
        3 => (run(), proptest::bool::weighted(0.1)).prop_map(|(run, orphaned)| Ask::Sweep { run, orphaned }),
    ]
}

fn say() -> impl Strategy<Value = Say> {
    prop_oneof![
        6 => (command(), any::<bool>()).prop_map(|(command, is_final)| Say::Message { command, is_final }),
        5 => (command(), 0_u8..3, 0_u8..4).prop_map(|(command, call, status)| Say::Tool { command, call, status }),
        2 => command().prop_map(|command| Say::Output { command }),
        3 => (command(), 0_u16..999).prop_map(|(command, cents)| Say::Usage { command, cents }),
        2 => (command(), 0_u8..4).prop_map(|(command, phase)| Say::Phase { command, phase }),
        1 => command().prop_map(|command| Say::Error { command }),
        1 => Just(Say::Thread),
        4 => (command(), 0_i64..1_000, proptest::bool::weighted(0.25), proptest::bool::weighted(0.9)).prop_map(
            |(command, wait_ms, reuse, well_formed)| Say::Ask { command, wait_ms, reuse, well_formed }
        ),
        4 => (command(), 0_u8..4).prop_map(|(command, status)| Say::EndCommand { command, status }),
        1 => (0_u8..4).prop_map(|status| Say::EndRun { status }),
    ]
}
