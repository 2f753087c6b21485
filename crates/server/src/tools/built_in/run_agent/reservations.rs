//! What the children of a command have reserved of its budgets. A child gets all that is left, and that is reserved until its call
//! ends: then what it used is charged to the command, and the rest is free again. Nothing is stored for this: a child's own policy
//! says what it was given, and the command's fold which calls are open.

use ostler_protocol::{
    Failure,
    ids::RunId,
    kernel::{budgets::Spent, commands::Command, policy::Budgets, runs::Run},
};
use tokio::sync::{Mutex, MutexGuard};

use super::find_child_run;
use crate::app::App;

const LOCKS: usize = 16;
/// Children of the same parent are started one at a time in this process. Different parents may share a lock.
static STARTING: [Mutex<()>; LOCKS] = [const { Mutex::const_new(()) }; LOCKS];

pub(super) async fn lock(parent: RunId) -> MutexGuard<'static, ()> {
    let sum: usize = parent.to_string().bytes().map(usize::from).sum();
    STARTING[sum % LOCKS].lock().await
}

/// Whether children reserve anything: only what a child uses of these budgets is charged to its parent.
fn are_charged(budgets: &Budgets) -> bool {
    budgets.max_tokens.is_some() || budgets.max_cost_usd.is_some()
}

/// What the command has spent, without the call that starts a child: it is counted, and the child does not pay for it.
pub(super) fn spent(command: &Command, own_call: &str) -> Spent {
    let mut spent = Spent::of(&command.fold);
    spent.tool_calls -= i64::from(command.fold.tools.open.iter().any(|call_id| call_id == own_call));
    spent
}

/// What the command has spent, and what the children of its other open calls have reserved.
pub(super) async fn spent_or_reserved(
    app: &App,
    parent: &Run,
    command: &Command,
    budgets: &Budgets,
    own_call: &str,
) -> Result<Spent, Failure> {
    let mut spent = spent(command, own_call);
    if !are_charged(budgets) {
        return Ok(spent);
    }
    for call_id in command.fold.tools.open.iter().filter(|call_id| *call_id != own_call) {
        let Some(child) = find_child_run(app, parent, call_id).await? else { continue };
        let granted = &child.execution_policy.budgets;
        spent.tokens = spent.tokens.saturating_add(granted.max_tokens.unwrap_or(0));
        spent.cost_usd += granted.max_cost_usd.unwrap_or(0.0);
    }
    Ok(spent)
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

/// Whether a child with these budgets fits beside what is spent and reserved. It does not if another server has started a child at
/// the same moment.
pub(super) fn fits(budgets: &Budgets, child: &Budgets, spent: &Spent) -> bool {
    let tokens = |max: i64| spent.tokens.saturating_add(child.max_tokens.unwrap_or(0)) <= max;
    let cost = |max: f64| spent.cost_usd + child.max_cost_usd.unwrap_or(0.0) <= max;
    budgets.max_tokens.is_none_or(tokens) && budgets.max_cost_usd.is_none_or(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_what_is_neither_spent_nor_reserved() {
        let budgets = Budgets { max_tokens: Some(100), max_tool_calls: Some(3), ..Budgets::default() };
        let spent = |tokens: i64| Spent { tokens, tool_calls: 1, ..Spent::default() };
        let left = left_of(&budgets, &spent(40)).unwrap();
        assert_eq!((left.max_tokens, left.max_tool_calls, left.max_turns), (Some(60), Some(2), None));
        assert_eq!(left_of(&budgets, &spent(100)), None);
        assert!(fits(&budgets, &left, &spent(40)));
        assert!(!fits(&budgets, &left, &spent(41)), "another child was started at the same moment");
        let costs = Budgets { max_cost_usd: Some(1.0), ..Budgets::default() };
        assert_eq!(left_of(&costs, &Spent { cost_usd: 1.0, ..Spent::default() }), None);
        assert!(are_charged(&costs) && !are_charged(&Budgets { max_turns: Some(1), ..Budgets::default() }));
    }
}
