//! Whether a run may call a tool: by its execution policy, by the scopes that were granted to its agent, and by how much it may do
//! without asking.

use std::collections::BTreeSet;

use super::definition::{ToolDefinition, ToolOrigin};
use crate::{
    Failure, Rule,
    kernel::{
        modes::ApprovalMode,
        policy::{Approval, ExecutionPolicy, Network, Sandbox},
    },
};

/// What a run may do.
#[derive(Clone, Copy, Debug)]
pub struct CallAuthority<'a> {
    pub sandbox: Sandbox,
    pub network: Network,
    pub approval: Approval,
    /// The mode that the command names, if it names one.
    pub mode: Option<ApprovalMode>,
    /// The scopes that the person has granted to the run's agent. `None` if the run has no agent.
    pub granted: Option<&'a BTreeSet<String>>,
}

/// The decision about a call.
#[derive(Clone, Debug)]
pub enum Authorisation {
    Allow,
    /// A person decides, about exactly this call.
    Ask,
    Refuse(Failure),
}

impl<'a> CallAuthority<'a> {
    pub fn of(policy: &ExecutionPolicy, mode: Option<ApprovalMode>, granted: Option<&'a BTreeSet<String>>) -> Self {
        let ExecutionPolicy { sandbox, network, approval, .. } = *policy;
        Self { sandbox, network, approval, mode, granted }
    }

    /// How much it may do without asking. A mode narrows the policy and never widens it.
    fn approval(&self) -> Approval {
        let by_mode = match self.mode {
            None | Some(ApprovalMode::Yolo) => Approval::Never,
            Some(ApprovalMode::Plan | ApprovalMode::Default | ApprovalMode::AutoEdit | ApprovalMode::Auto) => {
                Approval::OnRequest
            }
        };
        self.approval.min(by_mode)
    }
}

/// Decides about a call of a tool. The arguments do not matter: they are part of what a person is asked about.
pub fn authorise(tool: &ToolDefinition, authority: &CallAuthority<'_>) -> Authorisation {
    match refusal(tool, authority) {
        Some(failure) => Authorisation::Refuse(failure),
        None if must_ask(tool, authority.approval()) => Authorisation::Ask,
        None => Authorisation::Allow,
    }
}

/// What the run may never do, also with a permission. An MCP server may state anything about its own tools, so that they count as
/// changing and as using the network, unless the operator trusts the server's statements.
fn refusal(tool: &ToolDefinition, authority: &CallAuthority<'_>) -> Option<Failure> {
    let name = &tool.name;
    let (changes, uses_network) = (tool.changes || !tool.is_trusted, tool.uses_network || !tool.is_trusted);
    let lacks = |scope: &&String| authority.granted.is_some_and(|granted| !granted.contains(*scope));
    if let Some(scope) = tool.scope.as_ref().filter(lacks) {
        let message = format!("the agent was not granted the scope {scope:?}, which {name} requires");
        return Some(Failure::rule(Rule::ToolScope, message).detail("scope", scope.as_str()));
    }
    if uses_network && authority.network == Network::Disabled {
        return Some(Failure::rule(
            Rule::ToolNetwork,
            format!("{name} uses the network, which the run's policy disables"),
        ));
    }
    if changes && authority.sandbox == Sandbox::ReadOnly {
        return Some(Failure::rule(Rule::ToolReadOnly, format!("{name} changes something, and the run may only read")));
    }
    if changes && authority.mode == Some(ApprovalMode::Plan) {
        return Some(Failure::rule(Rule::ToolReadOnly, format!("{name} changes something, and the turn only plans")));
    }
    None
}

/// On request, what an MCP server states about its tools decides whether a call asks. A run that trusts nothing asks for all of them.
fn must_ask(tool: &ToolDefinition, approval: Approval) -> bool {
    let is_own = matches!(tool.origin, ToolOrigin::BuiltIn | ToolOrigin::Dialect(_));
    match approval {
        Approval::Never => false,
        Approval::OnRequest => tool.changes,
        Approval::Untrusted => tool.changes || tool.uses_network || !is_own,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Map;

    use super::*;

    fn tool(changes: bool, uses_network: bool, scope: Option<&str>, origin: ToolOrigin) -> ToolDefinition {
        let mut tool = ToolDefinition::new(origin, "t", "d", Map::new()).unwrap();
        (tool.changes, tool.uses_network, tool.scope) = (changes, uses_network, scope.map(str::to_owned));
        tool
    }

    fn authority(sandbox: Sandbox, network: Network, approval: Approval) -> CallAuthority<'static> {
        CallAuthority { sandbox, network, approval, mode: None, granted: None }
    }

    /// From narrow to wide.
    fn width(decided: &Authorisation) -> u8 {
        match decided {
            Authorisation::Refuse(_) => 0,
            Authorisation::Ask => 1,
            Authorisation::Allow => 2,
        }
    }

    fn rule(decided: Authorisation) -> Option<Rule> {
        match decided {
            Authorisation::Refuse(failure) => failure.broken_rule(),
            _ => None,
        }
    }

    #[test]
    fn changes_need_approval_on_request_and_unknown_tools_if_nothing_is_trusted() {
        let (reads, changes) =
            (tool(false, false, None, ToolOrigin::BuiltIn), tool(true, false, None, ToolOrigin::BuiltIn));
        let foreign = tool(false, false, None, ToolOrigin::Mcp("notes".into()));
        let decide = |tool: &ToolDefinition, approval| {
            width(&authorise(tool, &authority(Sandbox::WorkspaceWrite, Network::Enabled, approval)))
        };
        for (approval, expected) in
            [(Approval::Never, [2, 2, 2]), (Approval::OnRequest, [2, 1, 2]), (Approval::Untrusted, [2, 1, 1])]
        {
            assert_eq!([&reads, &changes, &foreign].map(|tool| decide(tool, approval)), expected, "{approval:?}");
        }
    }

    #[test]
    fn policies_and_scopes_refuse_by_name() {
        let open = authority(Sandbox::WorkspaceWrite, Network::Enabled, Approval::Never);
        let web = tool(false, true, None, ToolOrigin::BuiltIn);
        assert_eq!(
            rule(authorise(&web, &CallAuthority { network: Network::Disabled, ..open })),
            Some(Rule::ToolNetwork)
        );
        let writes = tool(true, false, None, ToolOrigin::BuiltIn);
        assert_eq!(
            rule(authorise(&writes, &CallAuthority { sandbox: Sandbox::ReadOnly, ..open })),
            Some(Rule::ToolReadOnly)
        );
        let plans = CallAuthority { mode: Some(ApprovalMode::Plan), ..open };
        assert_eq!(rule(authorise(&writes, &plans)), Some(Rule::ToolReadOnly));
        let scoped = tool(false, false, Some("calendar:write"), ToolOrigin::Dialect("run_input"));
        assert_eq!(width(&authorise(&scoped, &open)), 2, "a run without an agent needs no scope");
        let (none, granted) = (BTreeSet::new(), BTreeSet::from(["calendar:write".to_owned()]));
        assert_eq!(rule(authorise(&scoped, &CallAuthority { granted: Some(&none), ..open })), Some(Rule::ToolScope));
        assert_eq!(width(&authorise(&scoped, &CallAuthority { granted: Some(&granted), ..open })), 2);
    }

    #[test]
    fn what_an_mcp_server_states_widens_no_hard_limit() {
        let open = authority(Sandbox::WorkspaceWrite, Network::Enabled, Approval::Never);
        let mut foreign = tool(false, false, None, ToolOrigin::Mcp("notes".into()));
        let limits = [
            (CallAuthority { sandbox: Sandbox::ReadOnly, ..open }, Rule::ToolReadOnly),
            (CallAuthority { mode: Some(ApprovalMode::Plan), ..open }, Rule::ToolReadOnly),
            (CallAuthority { network: Network::Disabled, ..open }, Rule::ToolNetwork),
        ];
        for (authority, expected) in limits {
            assert_eq!(rule(authorise(&foreign, &authority)), Some(expected));
        }
        foreign.is_trusted = true;
        assert!(limits.iter().all(|(authority, _)| width(&authorise(&foreign, authority)) == 2));
    }

    proptest! {
        #[test]
        fn a_wider_policy_never_decides_more_narrowly(
            changes: bool, uses_network: bool, scoped: bool, foreign: bool,
            wide in (0..3_usize, 0..2_usize, 0..3_usize, any::<bool>(), 0..6_usize),
            narrow in (0..3_usize, 0..2_usize, 0..3_usize, any::<bool>()),
        ) {
            let origin = if foreign { ToolOrigin::Mcp("x".into()) } else { ToolOrigin::BuiltIn };
            let tool = tool(changes, uses_network, scoped.then_some("s"), origin);
            let (none, all) = (BTreeSet::new(), BTreeSet::from(["s".to_owned()]));
            let sandboxes = [Sandbox::ReadOnly, Sandbox::WorkspaceWrite, Sandbox::DangerFullAccess];
            let approvals = [Approval::Untrusted, Approval::OnRequest, Approval::Never];
            let networks = [Network::Disabled, Network::Enabled];
            let mode = ApprovalMode::ALL.get(wide.4).copied();
            let of = |(sandbox, network, approval, granted): (usize, usize, usize, bool)| CallAuthority {
                sandbox: sandboxes[sandbox], network: networks[network], approval: approvals[approval], mode,
                granted: Some(if granted { &all } else { &none }),
            };
            let narrower = (wide.0.min(narrow.0), wide.1.min(narrow.1), wide.2.min(narrow.2), wide.3 && narrow.3);
            let (wide, narrow) = (of((wide.0, wide.1, wide.2, wide.3)), of(narrower));
            let by_policy = CallAuthority { mode: None, ..wide };
            let widths = [narrow, wide, by_policy].map(|authority| width(&authorise(&tool, &authority)));
            prop_assert!(widths.is_sorted(), "{:?}", widths);
        }
    }
}
