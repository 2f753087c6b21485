//! The tenant policy boundary: allow-lists, an execution policy completed with defaults and never widened, and a secret
//! scope checked by shape only. It judges no business: what a tenant may deploy or write is recorded, not decided.

mod execution;
#[cfg(test)]
mod tests;
pub use execution::{
    Approval, Budgets, ExecutionPolicy, Network, ProviderCredential, RequestedPolicy, Sandbox, SecretRef, SecretScope,
    ToolCredential,
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, RawJson, Rule,
    ids::{name, slug},
    json::read_shape,
    kernel::{
        backends::{built_in, secret_keys},
        permissions::{PermissionStrategy, VotingRules},
        provider_profiles::secret_name,
        resource_bundles::ResourceBundle,
        runs::{CreateRun, TraceSink},
        workspaces::WorkspaceRef,
    },
    limits::{PERMISSIONS_OPEN_CEILING, TRACE_SINK_BYTES_MAX, WORKSPACE_REF_BYTES_MAX},
    problems::Problems,
};

/// Credentials, or keys of one, that a run may name.
const CREDENTIALS_MAX: usize = 16;

/// The widest policy a run can get, and what it gets when it does not ask; but to be held by nothing it has to ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// What the agent may touch: `read-only`, `workspace-write` or `danger-full-access`, which a run has to ask for.
    pub sandbox: Sandbox,
    /// When the agent asks before it acts: `untrusted`, `on-request` or `never`.
    pub approval: Approval,
    /// How long a command may take.
    pub timeout_ms: i64,
    /// `disabled` or `enabled`.
    pub network: Network,
    /// Model calls per command; unset is no ceiling.
    pub max_turns: Option<i64>,
    /// Tokens per command; unset is no ceiling.
    pub max_tokens: Option<i64>,
    /// Tool calls per command; unset is no ceiling.
    pub max_tool_calls: Option<i64>,
    /// Cost per command, where prices are known; unset is no ceiling.
    pub max_cost_usd: Option<f64>,
}

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            sandbox: Sandbox::WorkspaceWrite,
            approval: Approval::Never,
            timeout_ms: 1_800_000,
            network: Network::Enabled,
            max_turns: None,
            max_tokens: None,
            max_tool_calls: None,
            max_cost_usd: None,
        }
    }
}

/// The boundary, from config. An empty list of projects or providers allows any well-formed one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TenantPolicy {
    /// Tenants of this server. The command line uses `local`; `unidesk` and `hwlab` are those of the platforms that the run
    /// manager's API comes from. Name your own instead.
    pub tenants: Vec<String>,
    /// Projects a run may name; empty allows any.
    pub projects: Vec<String>,
    /// Providers a run may name; empty allows any.
    pub providers: Vec<String>,
    /// Backend profiles a run may name; empty allows any.
    pub backend_profiles: Vec<String>,
    /// Tools whose credentials a run may reference.
    pub tool_credentials: Vec<String>,
    /// Profiles that need no credential.
    pub credential_free_profiles: Vec<String>,
    /// Whose answer to a permission request counts: `first-responder`, `designated`, `consensus` or `local-only`. A run may
    /// choose another one only if this is `first-responder`.
    pub permission_strategy: PermissionStrategy,
    /// Equal votes that decide under `consensus`; unset is more than half of the session's participants.
    pub consensus_quorum: Option<i64>,
    pub ceiling: Ceiling,
}

impl Default for TenantPolicy {
    fn default() -> Self {
        let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Self {
            tenants: list(&["unidesk", "hwlab", "local"]),
            projects: vec![],
            providers: vec![],
            backend_profiles: vec![],
            tool_credentials: list(&["github", "unidesk-ssh"]),
            credential_free_profiles: list(&["scripted", "model"]),
            permission_strategy: PermissionStrategy::FirstResponder,
            consensus_quorum: None,
            ceiling: Ceiling::default(),
        }
    }
}

/// A run request that passed the boundary.
#[derive(Clone, Debug)]
pub struct AdmittedRun {
    pub tenant_id: String,
    pub project_id: String,
    pub workspace_ref: RawJson,
    pub provider_id: String,
    pub backend_profile: String,
    pub execution_policy: ExecutionPolicy,
    pub trace_sink: RawJson,
    pub resource_bundle_ref: Option<RawJson>,
}

impl TenantPolicy {
    /// Checks a run request and completes its policy. Every refusal names its rule.
    pub fn admit(&self, request: &CreateRun) -> Result<AdmittedRun, Failure> {
        let mut problems = Problems::default();
        let profile = required("backendProfile", Rule::BackendProfileRequired, request.backend_profile.as_deref());
        let profile = profile.and_then(|profile| self.profile(profile)).map(Some);
        let admitted = self.examine(request, profile, &mut problems);
        problems.check()?;
        admitted.ok_or_else(|| Failure::internal("a run without a problem was not admitted"))
    }

    /// Checks everything of a run request that does not depend on its profile, which is not known.
    pub fn check_without_profile(&self, request: &CreateRun) -> Result<(), Failure> {
        let mut problems = Problems::default();
        self.examine(request, Ok(None), &mut problems);
        problems.check()
    }

    /// Notes all problems of a request. `None` if there is one, or if the profile is not known.
    fn examine(
        &self,
        request: &CreateRun,
        profile: Result<Option<&str>, Failure>,
        problems: &mut Problems,
    ) -> Option<AdmittedRun> {
        let named = |field: &str, rule, value, (allowed, unlisted): (&[String], _)| {
            let text = name(field, required(field, rule, value)?)?;
            listed(allowed, text, unlisted, field).map(|()| text)
        };
        let tenant_id = required("tenantId", Rule::TenantIdRequired, request.tenant_id.as_deref());
        let tenant_id = problems.note(tenant_id.and_then(|tenant_id| self.tenant(tenant_id)));
        let (projects, providers) =
            ((&*self.projects, Rule::ProjectAllowList), (&*self.providers, Rule::ProviderAllowList));
        let project_id = named("projectId", Rule::ProjectIdRequired, request.project_id.as_deref(), projects);
        let project_id = problems.note(project_id);
        let workspace_ref = problems.note(workspace(request.workspace_ref.as_ref(), tenant_id));
        let resource_bundle_ref = problems.note(bundle(request.resource_bundle_ref.as_ref()));
        problems.note(not_of_run("backendImageRef", request.backend_image_ref.as_ref()));
        problems.note(not_of_run("transientEnv", request.transient_env.as_ref()));
        let provider_id = named("providerId", Rule::ProviderIdRequired, request.provider_id.as_deref(), providers);
        let provider_id = problems.note(provider_id);
        let profile = problems.note(profile).flatten();
        let trace_sink = problems.note(trace_sink(request.trace_sink.as_ref()));
        let execution_policy = problems.note(self.complete(request.execution_policy.as_ref(), profile));
        Some(AdmittedRun {
            tenant_id: tenant_id?.to_owned(),
            project_id: project_id?.to_owned(),
            workspace_ref: workspace_ref?,
            provider_id: provider_id?.to_owned(),
            backend_profile: profile?.to_owned(),
            execution_policy: execution_policy?,
            trace_sink: trace_sink?,
            resource_bundle_ref: resource_bundle_ref?,
        })
    }

    /// How permission requests are decided, unless a run chooses otherwise.
    pub fn voting_rules(&self) -> VotingRules {
        VotingRules { strategy: self.permission_strategy, quorum: self.consensus_quorum }
    }

    /// No run replaces the configured strategy, except the widest one.
    fn permission_strategy(
        &self,
        requested: Option<PermissionStrategy>,
    ) -> Result<Option<PermissionStrategy>, Failure> {
        if requested.is_some_and(|requested| self.voting_rules().strategy_of(Some(requested)) != requested) {
            let configured = self.permission_strategy.as_str();
            let message = format!("executionPolicy.permissionStrategy: this server decides by {configured:?}");
            return Err(Failure::rule(Rule::PermissionStrategyWidened, message));
        }
        Ok(requested)
    }

    pub fn tenant<'a>(&self, tenant_id: &'a str) -> Result<&'a str, Failure> {
        name("tenantId", tenant_id)?;
        if self.tenants.iter().any(|t| t == tenant_id) {
            return Ok(tenant_id);
        }
        // The other tenants are not named: a caller of one tenant need not know of them.
        let message = format!("the server knows no tenant {tenant_id:?}; policy.tenants names them");
        Err(Failure::rule(Rule::TenantAllowList, message).detail("tenantId", tenant_id))
    }

    pub fn profile<'a>(&self, profile: &'a str) -> Result<&'a str, Failure> {
        slug("backendProfile", profile)?;
        listed(&self.backend_profiles, profile, Rule::BackendProfileAllowList, "backendProfile")?;
        Ok(profile)
    }

    /// Without a profile the secret scope is not checked.
    fn complete(&self, requested: Option<&RawJson>, profile: Option<&str>) -> Result<ExecutionPolicy, Failure> {
        let requested: RequestedPolicy = match requested.filter(|raw| !raw.is_null()) {
            None => RequestedPolicy::default(),
            Some(raw) => read_shape(Rule::ExecutionPolicyShape, "executionPolicy", raw.as_str())?,
        };
        let ceiling = &self.ceiling;
        let timeout_ms = requested.timeout_ms.unwrap_or(ceiling.timeout_ms);
        let mut problems = Problems::default();
        if timeout_ms <= 0 {
            let message = "executionPolicy.timeoutMs must be positive";
            problems.note::<()>(Err(Failure::invalid(Rule::TimeoutPositive, message)));
        }
        if requested.permission_timeout_ms.is_some_and(|ms| ms <= 0) {
            let message = "executionPolicy.permissionTimeoutMs must be positive";
            problems.note::<()>(Err(Failure::invalid(Rule::TimeoutPositive, message)));
        }
        if requested.max_open_permissions.is_some_and(|max| !(1..=PERMISSIONS_OPEN_CEILING as i64).contains(&max)) {
            let message = format!("executionPolicy.maxOpenPermissions must be 1 to {PERMISSIONS_OPEN_CEILING}");
            problems.note::<()>(Err(Failure::invalid(Rule::ExecutionPolicyShape, message)));
        }
        let network = within(Rule::NetworkWidened, "network", requested.network, ceiling.network);
        let network = problems.note(network);
        // Running without any sandbox has to be requested; it is never the default.
        let by_default = ceiling.sandbox.min(Sandbox::WorkspaceWrite);
        let sandbox = requested.sandbox.unwrap_or(by_default);
        let sandbox = within(Rule::SandboxWidened, "sandbox", Some(sandbox), ceiling.sandbox);
        let sandbox = problems.note(sandbox);
        if let (Some(sandbox), Some(network)) = (sandbox, network) {
            problems.note(check_network(sandbox, network));
        }
        let strategy = problems.note(self.permission_strategy(requested.permission_strategy)).flatten();
        let approval = within(Rule::ApprovalWidened, "approval", requested.approval, ceiling.approval);
        let timeout_ms = within(Rule::TimeoutWidened, "timeoutMs", Some(timeout_ms), ceiling.timeout_ms);
        let budgets = Budgets {
            max_turns: problems.note(budget("maxTurns", requested.max_turns, ceiling.max_turns)).flatten(),
            max_tokens: problems.note(budget("maxTokens", requested.max_tokens, ceiling.max_tokens)).flatten(),
            max_tool_calls: problems
                .note(budget("maxToolCalls", requested.max_tool_calls, ceiling.max_tool_calls))
                .flatten(),
            max_cost_usd: problems.note(budget("maxCostUsd", requested.max_cost_usd, ceiling.max_cost_usd)).flatten(),
        };
        let policy = ExecutionPolicy {
            sandbox: sandbox.unwrap_or(ceiling.sandbox),
            network: network.unwrap_or(ceiling.network),
            approval: problems.note(approval).unwrap_or(ceiling.approval),
            timeout_ms: problems.note(timeout_ms).unwrap_or(ceiling.timeout_ms),
            secret_scope: match profile {
                Some(profile) => problems.note(self.secret_scope(requested.secret_scope, profile)).unwrap_or_default(),
                None => SecretScope::default(),
            },
            permission_strategy: strategy,
            permission_timeout_ms: requested.permission_timeout_ms,
            max_open_permissions: requested.max_open_permissions,
            budgets,
        };
        problems.check().map(|()| policy)
    }

    fn secret_scope(&self, scope: SecretScope, profile: &str) -> Result<SecretScope, Failure> {
        if scope.allow_credential_echo {
            return Err(Failure::rule(Rule::CredentialEcho, "secretScope.allowCredentialEcho must be false"));
        }
        if scope.provider_credentials.len() + scope.tool_credentials.len() > CREDENTIALS_MAX {
            let message = format!("secretScope holds at most {CREDENTIALS_MAX} credentials");
            return Err(Failure::invalid(Rule::SecretScopeSize, message));
        }
        for credential in &scope.provider_credentials {
            check_provider_credential(credential, profile)?;
        }
        for credential in &scope.tool_credentials {
            if !self.tool_credentials.contains(&credential.tool) {
                let message = format!("tool credential {:?} is not on the allow-list", credential.tool);
                return Err(Failure::rule(Rule::SecretScopeTool, message));
            }
            check_tool_secret(credential)?;
        }
        let needs_none = self.credential_free_profiles.iter().any(|p| p == profile);
        if scope.provider_credentials.is_empty() && !needs_none {
            let message = format!("backendProfile {profile:?} needs its provider credential in secretScope");
            return Err(Failure::rule(Rule::ProviderCredentialRequired, message));
        }
        Ok(scope)
    }
}

fn check_provider_credential(credential: &ProviderCredential, profile: &str) -> Result<(), Failure> {
    if credential.profile != profile {
        let message = format!("a run of {profile:?} may not carry the credential of {:?}", credential.profile);
        return Err(Failure::rule(Rule::SecretScopeProfile, message));
    }
    let wanted = secret_name(profile);
    if credential.secret_ref.name != wanted {
        return Err(Failure::rule(
            Rule::SecretScopeName,
            format!("the secretRef of {profile:?} must be named {wanted:?}"),
        ));
    }
    let known = secret_keys(profile);
    let given = &credential.secret_ref.keys;
    if let Some(key) = given.iter().find(|key| !known.contains(&key.as_str())) {
        return Err(Failure::rule(Rule::SecretScopeKey, format!("secretRef key {key:?} is not one of {known:?}")));
    }
    let missing: Vec<_> = required_keys(profile).into_iter().filter(|key| !given.iter().any(|g| g == key)).collect();
    if !missing.is_empty() {
        let message = format!("the secretRef of {profile:?} must offer {missing:?} too");
        return Err(Failure::rule(Rule::SecretScopeKeysMissing, message));
    }
    Ok(())
}

/// What a profile that comes with the product requires. Only the operator knows what other profiles need.
fn required_keys(profile: &str) -> Vec<String> {
    let built_in = built_in().into_iter().find(|backend| backend.profile == profile);
    built_in.map(|backend| backend.required_secret_keys).unwrap_or_default()
}

/// The naming rule: the secret of a tool has exactly this name.
pub fn tool_secret_name(tool: &str) -> String {
    format!("agentrun-v01-tool-{tool}")
}

/// The manager never reads a tool's secret; it only sees to it that the reference has the shape of that tool's own.
fn check_tool_secret(credential: &ToolCredential) -> Result<(), Failure> {
    let Some(secret) = &credential.secret_ref else { return Ok(()) };
    let wanted = tool_secret_name(&credential.tool);
    if secret.name != wanted {
        return Err(Failure::rule(
            Rule::SecretScopeName,
            format!("the secretRef of {:?} must be named {wanted:?}", credential.tool),
        ));
    }
    if secret.keys.len() > CREDENTIALS_MAX || secret.keys.iter().any(|key| name("key", key).is_err()) {
        return Err(Failure::rule(Rule::SecretScopeKey, "the secretRef's keys are too many or have no fit names"));
    }
    Ok(())
}

fn required<'a>(field: &str, rule: Rule, value: Option<&'a str>) -> Result<&'a str, Failure> {
    value.ok_or_else(|| Failure::invalid(rule, format!("{field} is required")))
}

fn listed(allowed: &[String], value: &str, rule: Rule, field: &str) -> Result<(), Failure> {
    if allowed.is_empty() || allowed.iter().any(|a| a == value) {
        return Ok(());
    }
    Err(Failure::rule(rule, format!("this {field} is not on the allow-list")).detail(field, value))
}

/// It is the sandbox that keeps an agent's tools from the network: without one nothing does.
fn check_network(sandbox: Sandbox, network: Network) -> Result<(), Failure> {
    if (network, sandbox) != (Network::Disabled, Sandbox::DangerFullAccess) {
        return Ok(());
    }
    let message = "executionPolicy.network cannot be disabled with the sandbox danger-full-access: nothing would hold";
    Err(Failure::rule(Rule::NetworkUnconfined, message))
}

fn within<T: PartialOrd + Copy>(rule: Rule, field: &str, requested: Option<T>, ceiling: T) -> Result<T, Failure> {
    match requested {
        Some(requested) if requested > ceiling => {
            Err(Failure::rule(rule, format!("executionPolicy.{field} is wider than this server allows")))
        }
        requested => Ok(requested.unwrap_or(ceiling)),
    }
}

fn budget<T: PartialOrd + Copy + Default>(
    field: &str,
    requested: Option<T>,
    ceiling: Option<T>,
) -> Result<Option<T>, Failure> {
    match (requested, ceiling) {
        (Some(requested), _) if requested <= T::default() => {
            Err(Failure::invalid(Rule::BudgetPositive, format!("executionPolicy.{field} must be positive")))
        }
        (Some(requested), Some(ceiling)) if requested > ceiling => {
            Err(Failure::rule(Rule::BudgetWidened, format!("executionPolicy.{field} is over this server's ceiling")))
        }
        (requested, ceiling) => Ok(requested.or(ceiling)),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkspaceShape {
    kind: String,
    tenant_id: Option<String>,
}

/// Without a tenant, the tenant of the workspace is not compared.
fn workspace(requested: Option<&RawJson>, tenant_id: Option<&str>) -> Result<RawJson, Failure> {
    let raw = requested.filter(|raw| !raw.is_null());
    let raw = raw.ok_or_else(|| Failure::invalid(Rule::WorkspaceRefRequired, "workspaceRef is required"))?;
    if raw.size() > WORKSPACE_REF_BYTES_MAX {
        return Err(Failure::too_large(Rule::WorkspaceRefSize, "workspaceRef", raw.size(), WORKSPACE_REF_BYTES_MAX));
    }
    let shape: WorkspaceShape = raw.view().ok_or_else(|| {
        Failure::invalid(Rule::WorkspaceRefShape, "workspaceRef must be an object with a string kind")
    })?;
    slug("workspaceRef.kind", &shape.kind)?;
    if shape.tenant_id.is_some_and(|named| tenant_id.is_some_and(|tenant_id| tenant_id != named)) {
        return Err(Failure::rule(Rule::WorkspaceTenant, "workspaceRef names another tenant than the run"));
    }
    WorkspaceRef::read(raw)?;
    Ok(raw.clone())
}

/// `None` if the run names no bundle.
fn bundle(requested: Option<&RawJson>) -> Result<Option<RawJson>, Failure> {
    let Some(raw) = requested.filter(|raw| !raw.is_null()) else { return Ok(None) };
    ResourceBundle::read(raw)?;
    Ok(Some(raw.clone()))
}

/// What is for one runner must not be passed over because it was given for the run.
fn not_of_run(field: &str, requested: Option<&RawJson>) -> Result<(), Failure> {
    if requested.is_none_or(RawJson::is_null) {
        return Ok(());
    }
    let message = format!("{field} is not a field of a run; give it to the runner job");
    Err(Failure::invalid(Rule::RunFieldOfJob, message).detail("field", field))
}

fn trace_sink(requested: Option<&RawJson>) -> Result<RawJson, Failure> {
    let raw = requested
        .ok_or_else(|| Failure::invalid(Rule::TraceSinkRequired, "traceSink must be there; it may be null"))?;
    if !raw.is_null() && raw.view::<TraceSink>().is_none() {
        return Err(Failure::invalid(Rule::TraceSinkShape, "traceSink must be null, a string or an object"));
    }
    if raw.size() > TRACE_SINK_BYTES_MAX {
        return Err(Failure::too_large(Rule::TraceSinkSize, "traceSink", raw.size(), TRACE_SINK_BYTES_MAX));
    }
    Ok(raw.clone())
}
