//! What the children of a command have used and reserved of its budgets. A child gets all that is left, and that is reserved until
//! the child's own command has ended. What it has used counts from then on, whether or not its call was charged for it: the calls of
//! a runner that was replaced are given up, and their children may still run. Nothing is stored for this: a child's own policy has
//! what it was given, and its fold what it has used.

use ostler_protocol::{
    Failure, Timestamp,
    ids::RunId,
    kernel::{
        budgets::Spent,
        commands::Command,
        facts::{DelegatedUse, Facts},
        policy::Budgets,
        runs::Run,
    },
};
use ostler_store as store;
use tokio::sync::{Mutex, MutexGuard};

use super::child::{Child, key_prefix};
use crate::app::App;

const LOCKS: usize = 16;
/// Children of the same parent are started one at a time by this server. Different parents may share a lock.
pub(crate) struct StartLocks([Mutex<()>; LOCKS]);

impl Default for StartLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(())))
    }
}

/// The newest events of calls among which those of one reply are searched.
const CALL_EVENTS_MAX: u32 = 400;
/// The smallest cost that is charged. Sums of the same costs may differ by less.
const COST_USD_MIN: f64 = 1e-9;

pub(super) async fn lock(app: &App, parent: RunId) -> MutexGuard<'_, ()> {
    let locks = &app.state::<StartLocks>().0;
    let sum: usize = parent.to_string().bytes().map(usize::from).sum();
    locks[sum % LOCKS].lock().await
}

/// Whether children reserve anything: only what a child uses of these budgets is charged to its parent.
pub(super) fn are_charged(budgets: &Budgets) -> bool {
    budgets.max_tokens.is_some() || budgets.max_cost_usd.is_some() || budgets.max_tool_calls.is_some()
}

/// A child of a command, and what it was given and has used.
pub(super) struct StartedChild {
    child: Child,
    call_id: String,
    created_at: Timestamp,
    granted: DelegatedUse,
    used: DelegatedUse,
    has_ended: bool,
}

/// All children that calls of the command have started.
pub(super) async fn children_of(app: &App, parent: &Run, command: &Command) -> Result<Vec<StartedChild>, Failure> {
    let prefix = key_prefix(parent);
    let found =
        store::kernel::runs::list_children(&app.db, &parent.tenant_id, &prefix, command.command_id).await?.into_iter();
    // A caller may choose any key, so that only a run of the same creator is a child.
    let own = found.filter(|(run, _)| run.created_by == parent.created_by);
    let children = own.filter_map(|(run, first)| {
        let granted = &run.execution_policy.budgets;
        Some(StartedChild {
            call_id: run.idempotency_key.as_deref()?.strip_prefix(&prefix)?.to_owned(),
            child: Child { run_id: run.run_id, command_id: first.command_id, session: run.session },
            created_at: run.created_at,
            granted: DelegatedUse {
                tokens: granted.max_tokens.unwrap_or(0),
                cost_usd: granted.max_cost_usd.unwrap_or(0.0),
                tool_calls: granted.max_tool_calls.unwrap_or(0),
            },
            used: use_of(&first),
            has_ended: first.state.is_terminal(),
        })
    });
    Ok(children.collect())
}

/// What the command of a child has used, also through others.
pub(super) fn use_of(command: &Command) -> DelegatedUse {
    let Spent { tokens, cost_usd, tool_calls, .. } = Spent::of(&command.fold);
    DelegatedUse { tokens, cost_usd, tool_calls }
}

fn sum(uses: impl Iterator<Item = DelegatedUse>) -> DelegatedUse {
    uses.fold(DelegatedUse::default(), |mut sum, one| {
        sum.add(one);
        sum
    })
}

/// Children that still run although their calls are not open any more: nothing waits for them. `children` must have been read before
/// the command.
pub(super) fn orphans<'a>(command: &'a Command, children: &'a [StartedChild]) -> impl Iterator<Item = &'a Child> {
    let tools = &command.fold.tools;
    let is_given_up = move |call_id: &String| tools.has_room_for_open() && !tools.open.contains(call_id);
    let orphans = children.iter().filter(move |child| !child.has_ended && is_given_up(&child.call_id));
    orphans.map(|child| &child.child)
}

/// What the command and those of its children that have ended have used. The call that starts a child is one of the command's calls,
/// and was recorded before.
pub(super) fn used(command: &Command, children: &[StartedChild]) -> Spent {
    let fold = &command.fold;
    let ended = sum(children.iter().filter(|child| child.has_ended).map(|child| child.used));
    let mut spent = Spent::of(fold);
    // What was charged is the use of some of these children.
    spent.tokens = fold.tokens.saturating_add(fold.delegated.tokens.max(ended.tokens));
    spent.cost_usd = fold.cost_usd + fold.delegated.cost_usd.max(ended.cost_usd);
    spent.tool_calls = fold.tools.count.saturating_add(fold.delegated.tool_calls.max(ended.tool_calls));
    spent
}

/// The other calls of the same reply of the model that `command` has not counted yet. They will be made, so that a child must not
/// get the room for them.
pub(super) async fn upcoming_calls(app: &App, command: &Command, reply_calls: &[String]) -> Result<i64, Failure> {
    let tools = &command.fold.tools;
    let mut missing: Vec<&str> = reply_calls.iter().map(String::as_str).collect();
    missing.retain(|call_id| !tools.has_toolkit_call(call_id));
    // The fold lists the newest calls only.
    if !missing.is_empty() && tools.has_dropped_items() {
        let (session, command_id) = (command.session, command.command_id);
        let read = store::kernel::events::list_tool_calls(&app.db, session, command_id, CALL_EVENTS_MAX).await?;
        let counted = read.events.iter().filter(|event| event.seq() <= command.fold.last_seq);
        for event in counted {
            if let Facts::Tool(call) = event.facts() {
                missing.retain(|call_id| call.tool_call_id.as_deref() != Some(*call_id));
            }
        }
    }
    Ok(missing.len() as i64)
}

/// With what the children that run have reserved.
pub(super) fn with_reserved(mut spent: Spent, children: &[StartedChild]) -> Spent {
    let reserved = sum(children.iter().filter(|child| !child.has_ended).map(|child| child.granted));
    spent.tokens = spent.tokens.saturating_add(reserved.tokens);
    spent.cost_usd += reserved.cost_usd;
    spent.tool_calls = spent.tool_calls.saturating_add(reserved.tool_calls);
    spent
}

/// What is charged at the end of a call: the use of its child, and of children whose calls were given up. The first of the open calls
/// is charged for those, so that they are charged once. `children` must have been read before the command.
pub(super) fn charge_of(
    command: &Command,
    own_call: &str,
    own: DelegatedUse,
    children: &[StartedChild],
) -> DelegatedUse {
    let (tools, charged) = (&command.fold.tools, command.fold.delegated);
    let first = tools.open.iter().find(|call_id| children.iter().any(|child| child.call_id == **call_id));
    if !tools.has_room_for_open() || first.is_none_or(|first| first != own_call) {
        return own;
    }
    let is_closed = |child: &&StartedChild| child.has_ended && !tools.open.contains(&child.call_id);
    let ended = sum(children.iter().filter(is_closed).map(|child| child.used));
    let cost_usd = Some(ended.cost_usd - charged.cost_usd).filter(|cost| *cost >= COST_USD_MIN).unwrap_or(0.0);
    let left = |ended: i64, charged: i64| ended.saturating_sub(charged).max(0);
    let (tokens, tool_calls) = (left(ended.tokens, charged.tokens), left(ended.tool_calls, charged.tool_calls));
    let lost = DelegatedUse { tokens, cost_usd, tool_calls };
    sum([own, lost].into_iter())
}

/// What all children have used, if all have ended and none of their calls is open any more. `children` must have been read before the
/// command.
pub(super) fn total_of_closed(command: &Command, children: &[StartedChild]) -> Option<DelegatedUse> {
    let tools = &command.fold.tools;
    let is_closed = |child: &StartedChild| child.has_ended && !tools.open.contains(&child.call_id);
    let all_closed = tools.has_room_for_open() && children.iter().all(is_closed);
    all_closed.then(|| sum(children.iter().map(|child| child.used)))
}

/// Whether a command was charged all of this.
pub(super) fn is_charged(command: &Command, total: DelegatedUse) -> bool {
    let charged = command.fold.delegated;
    let is_cost_charged = total.cost_usd - charged.cost_usd < COST_USD_MIN;
    total.tokens <= charged.tokens && total.tool_calls <= charged.tool_calls && is_cost_charged
}

/// What is left of the budgets. `None` if one is used up.
pub(super) fn left_of(budgets: &Budgets, spent: &Spent) -> Option<Budgets> {
    let left = |granted: Option<i64>, spent: i64| granted.map(|granted| granted.saturating_sub(spent));
    let left = Budgets {
        max_turns: left(budgets.max_turns, spent.turns),
        max_tokens: left(budgets.max_tokens, spent.tokens),
        max_tool_calls: left(budgets.max_tool_calls, spent.tool_calls),
        max_cost_usd: budgets.max_cost_usd.map(|granted| granted - spent.cost_usd),
    };
    let counts = [left.max_turns, left.max_tokens, left.max_tool_calls];
    let is_used_up =
        counts.into_iter().flatten().any(|left| left <= 0) || left.max_cost_usd.is_some_and(|left| left <= 0.0);
    (!is_used_up).then_some(left)
}

/// Children that have reserved the same as a new one.
pub(super) struct Collisions<'a> {
    pub has_older: bool,
    pub younger: Vec<&'a Child>,
}

/// The children that collide with the new child `own`: they run, and were not `seen` when it was started. Children that were seen
/// have reserved something else.
pub(super) fn collisions<'a>(children: &'a [StartedChild], seen: &[StartedChild], own: RunId) -> Collisions<'a> {
    let mut collisions = Collisions { has_older: false, younger: vec![] };
    let age = |child: &StartedChild| (child.created_at, child.child.run_id);
    let Some(new) = children.iter().find(|child| child.child.run_id == own) else { return collisions };
    for other in children.iter().filter(|other| !other.has_ended && other.child.run_id != own) {
        if seen.iter().any(|known| known.child.run_id == other.child.run_id) {
            continue;
        }
        if age(other) < age(new) {
            collisions.has_older = true;
        } else {
            collisions.younger.push(&other.child);
        }
    }
    collisions
}

#[cfg(test)]
mod tests {
    use ostler_protocol::ids::{CommandId, SessionId};
    use uuid::Uuid;

    use super::*;

    /// A child that was given 100 tokens.
    fn child(number: u128, second: i64, used: i64, has_ended: bool) -> StartedChild {
        let id = Uuid::from_u128(number);
        StartedChild {
            child: Child { run_id: RunId::new(id), command_id: CommandId::new(id), session: SessionId::new(id) },
            call_id: format!("call_{number}"),
            created_at: Timestamp::from_second(second).unwrap(),
            granted: DelegatedUse { tokens: 100, ..DelegatedUse::default() },
            used: DelegatedUse { tokens: used, ..DelegatedUse::default() },
            has_ended,
        }
    }

    #[test]
    fn a_child_gets_what_is_neither_used_nor_reserved() {
        let budgets = Budgets { max_tokens: Some(150), max_tool_calls: Some(3), ..Budgets::default() };
        let spent = |tokens: i64| Spent { tokens, tool_calls: 1, ..Spent::default() };
        let left = left_of(&budgets, &with_reserved(spent(40), &[child(1, 1, 70, true)])).unwrap();
        assert_eq!((left.max_tokens, left.max_tool_calls, left.max_turns), (Some(110), Some(2), None));
        let left = left_of(&budgets, &with_reserved(spent(40), &[child(1, 1, 7, false)])).unwrap();
        assert_eq!(left.max_tokens, Some(10), "it may use all that it was given");
        assert_eq!(left_of(&budgets, &spent(150)), None);
        let mut calling = child(1, 1, 7, false);
        calling.granted.tool_calls = 1;
        let left = left_of(&budgets, &with_reserved(spent(40), std::slice::from_ref(&calling))).unwrap();
        assert_eq!(left.max_tool_calls, Some(1));
        calling.granted.tool_calls = 2;
        assert_eq!(left_of(&budgets, &with_reserved(spent(40), &[calling])), None, "it may make all of its calls");
        let costs = Budgets { max_cost_usd: Some(1.0), ..Budgets::default() };
        assert_eq!(left_of(&costs, &Spent { cost_usd: 1.0, ..Spent::default() }), None);
        let calls = Budgets { max_tool_calls: Some(1), ..Budgets::default() };
        let turns = Budgets { max_turns: Some(1), ..Budgets::default() };
        assert!(are_charged(&costs) && are_charged(&calls) && !are_charged(&turns));
    }

    #[test]
    fn of_two_children_that_were_started_at_the_same_moment_the_older_stays() {
        let found = |own: u128, children: &[StartedChild], seen: &[StartedChild]| {
            let found = collisions(children, seen, RunId::new(Uuid::from_u128(own)));
            (found.has_older, found.younger.len())
        };
        let both = [child(1, 5, 0, false), child(2, 4, 0, false)];
        assert_eq!((found(1, &both, &[]), found(2, &both, &[])), ((true, 0), (false, 1)));
        let same_time = [child(1, 5, 0, false), child(2, 5, 0, false)];
        assert_eq!((found(1, &same_time, &[]), found(2, &same_time, &[])), ((false, 1), (true, 0)));
        assert_eq!(found(1, &both, &both[1..]), (false, 0), "it was given what the other left");
        assert_eq!(found(1, &[child(1, 5, 0, false), child(2, 4, 9, true)], &[]), (false, 0), "it has ended");
        assert_eq!(found(1, &both[..1], &[]), (false, 0), "nothing else counts, whatever the parent has used since");
    }
}
