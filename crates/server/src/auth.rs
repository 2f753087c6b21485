//! Authentication and authorisation of callers. Closed by default: no token, no access. Tokens are compared by their hashes.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind, Rule,
    ids::{AgentId, RunId, RunnerJobId, TokenId, UserId},
    kernel::{provider_profiles::ProfileOwner, sessions::Session},
    tokens::TokenRole,
};

use crate::{app::RunRef, traces::note_tenant};

mod authenticator;
mod issuers;
mod key_sets;
mod kinds;
mod tokens;

pub use authenticator::Authenticator;
pub use issuers::Issuers;
pub use kinds::TokenKind;
pub use tokens::{
    RUN, SERVICE, derive, mint, operator_token, random_secret_file, signing_key, token_hash, token_of_variable,
};

/// The user that the operator's own token acts as.
pub const LOCAL: &str = "local";

#[derive(Clone, Debug, PartialEq)]
pub enum Principal {
    /// The owner of this installation: everything, everywhere.
    Operator,
    /// A platform, in its tenants.
    Service { token_id: TokenId, tenants: Arc<[String]>, role: TokenRole },
    /// A person, in their tenants.
    User { user_id: UserId, name: Arc<str>, tenants: Arc<[String]> },
    /// An agent that people grant something.
    Agent { agent_id: AgentId, token_id: TokenId },
    /// A runner that was started for one run.
    Runner { run_id: RunId, runner_job_id: RunnerJobId },
}

/// The owner of a session and everything in it: its tenant, and for a thread also one user of the tenant.
#[derive(Clone, Copy)]
pub struct Whose<'a> {
    tenant_id: &'a str,
    owner: Option<&'a str>,
}

impl<'a> From<&'a Session> for Whose<'a> {
    fn from(session: &'a Session) -> Self {
        Self { tenant_id: &session.tenant_id, owner: session.owner.as_deref() }
    }
}

impl<'a> From<&'a RunRef> for Whose<'a> {
    fn from(run: &'a RunRef) -> Self {
        Self { tenant_id: &run.tenant_id, owner: run.owner.as_deref() }
    }
}

/// What an operation requires of its caller, before it is known which run or tenant it is about. Each operation declares
/// one as the `security` of its attribute; the gate enforces it, and the OpenAPI document shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every caller, without a token; with `--require-auth`, every caller with one.
    Public,
    /// Every caller with a signed URL. The URL is the only proof: neither a token nor an allowed origin is required.
    Signed,
    /// Every caller: it authenticates in the first frame of the WebSocket.
    Introduce,
    /// Every caller, also under the host names of the route's dialect, whose handlers check their own proofs.
    Anonymous,
    /// Every caller with a token, about itself.
    Identify,
    /// Every caller with a tenant: lists, sessions, what this server offers.
    Browse,
    /// Callers that may see a run: those of its tenant, and its own runner.
    Read,
    /// Callers that may submit work and cancel it.
    Submit,
    /// Callers that may see which provider profiles exist and whether they can be used: users, and services that submit or
    /// provide.
    Inspect,
    /// Callers that may write provider profiles: services of the role `provide`, for their owners.
    Provide,
    /// Callers that may execute a run.
    Run,
    /// Callers that may own agents, threads with them, and relations that grant agents scopes: users. The operator is the user
    /// `local`.
    Own,
    /// Callers that may read what the server counts: services of the role `metrics`.
    Scrape,
    /// The operator alone.
    Operate,
}

impl Access {
    /// The values that an operation of the document may declare.
    pub const ALL: [Self; 13] = [
        Self::Public,
        Self::Signed,
        Self::Anonymous,
        Self::Identify,
        Self::Browse,
        Self::Read,
        Self::Submit,
        Self::Inspect,
        Self::Provide,
        Self::Run,
        Self::Own,
        Self::Scrape,
        Self::Operate,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Signed => "signed",
            Self::Anonymous => "anonymous",
            Self::Introduce => "introduce",
            Self::Identify => "identify",
            Self::Browse => "browse",
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Inspect => "inspect",
            Self::Provide => "provide",
            Self::Run => "run",
            Self::Own => "own",
            Self::Scrape => "scrape",
            Self::Operate => "operate",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.as_str() == text)
    }

    /// What the access allows, for callers. `None` for access that every caller has.
    pub fn description(self) -> Option<&'static str> {
        Some(match self {
            Self::Public | Self::Signed | Self::Introduce | Self::Anonymous | Self::Identify => return None,
            Self::Browse => "list runs, sessions and backends",
            Self::Read => "read a run and what belongs to it",
            Self::Submit => "submit work, answer permission requests and cancel",
            Self::Inspect => "see provider profiles and whether they can be used",
            Self::Provide => "set, read, test and delete provider profiles",
            Self::Run => "claim and execute runs",
            Self::Own => "own agents, threads, grants, automations and calendar events",
            Self::Scrape => "read the metrics",
            Self::Operate => "manage tokens, users, mesh identities and retention, and call tools",
        })
    }

    fn refusal(self) -> &'static str {
        match self {
            Self::Public | Self::Signed | Self::Introduce | Self::Anonymous | Self::Identify => "this needs a token",
            Self::Browse => {
                "a runner sees its own run only; agents and tokens of the roles provide and metrics see none"
            }
            Self::Read => "agents and tokens of the roles provide and metrics see no run",
            Self::Submit => "runners, agents and tokens of the roles provide and metrics may not submit work",
            Self::Inspect => "provider profiles are for users and services of the roles client and provide",
            Self::Provide => "this needs the operator's token or a token of the role provide",
            Self::Run => "this token may not act as a runner",
            Self::Own => "agents, threads and grants are for users, not for services, runners and agents",
            Self::Scrape => "only the operator and services of the role metrics may read the metrics",
            Self::Operate => "only the operator may do this",
        }
    }

    /// Whether this kind of caller has this access. The only place that decides it.
    pub fn admit(self, caller: &Principal) -> Result<(), Failure> {
        use Principal::{Agent, Operator, Runner, Service, User};
        let admitted = match (self, caller) {
            (_, Operator) => true,
            (Self::Public | Self::Signed | Self::Introduce | Self::Anonymous | Self::Identify, _) => true,
            (Self::Read | Self::Browse, Service { role, .. }) => matches!(role, TokenRole::Client | TokenRole::Runner),
            (Self::Read, _) => !matches!(caller, Agent { .. }),
            (Self::Browse, _) => !matches!(caller, Runner { .. } | Agent { .. }),
            (Self::Submit, _) => matches!(caller, User { .. } | Service { role: TokenRole::Client, .. }),
            (Self::Inspect, _) => {
                matches!(caller, User { .. } | Service { role: TokenRole::Client | TokenRole::Provide, .. })
            }
            (Self::Provide, _) => matches!(caller, Service { role: TokenRole::Provide, .. }),
            (Self::Run, _) => matches!(caller, Runner { .. } | Service { role: TokenRole::Runner, .. }),
            (Self::Own, _) => matches!(caller, User { .. }),
            (Self::Scrape, _) => matches!(caller, Service { role: TokenRole::Metrics, .. }),
            (Self::Operate, _) => false,
        };
        if admitted { Ok(()) } else { Err(Failure::rule(Rule::Role, self.refusal())) }
    }
}

impl Principal {
    /// The caller's name, for audit events.
    pub fn name(&self) -> String {
        match self {
            Self::Operator => "operator".into(),
            Self::Service { token_id, .. } => format!("service:{token_id}"),
            Self::User { name, .. } => format!("user:{name}"),
            Self::Agent { agent_id, .. } => format!("agent:{agent_id}"),
            Self::Runner { runner_job_id, .. } => format!("runner:{runner_job_id}"),
        }
    }

    /// The owner of what this caller creates. The operator's token acts as the user `local`.
    pub fn owner(&self) -> Result<String, Failure> {
        Access::Own.admit(self)?;
        Ok(match self {
            Self::User { user_id, .. } => user_id.to_string(),
            _ => LOCAL.to_owned(),
        })
    }

    /// `None`: every tenant.
    pub fn tenants(&self) -> Option<&[String]> {
        match self {
            Self::Operator => None,
            Self::Service { tenants, .. } | Self::User { tenants, .. } => Some(tenants),
            Self::Agent { .. } | Self::Runner { .. } => Some(&[]),
        }
    }

    /// The tenants that a list covers: the requested one, or all that the caller may see. `None` means every tenant. A
    /// requested tenant that the caller may see is noted for the trace.
    pub fn tenants_within(&self, requested: Option<&str>) -> Result<Option<Vec<String>>, Failure> {
        match (requested, self.tenants()) {
            (Some(tenant), Some(own)) if !own.iter().any(|t| t == tenant) => {
                Err(Failure::rule(Rule::Tenant, "this token is not for that tenant"))
            }
            (Some(tenant), _) => {
                note_tenant(tenant);
                Ok(Some(vec![tenant.to_owned()]))
            }
            (None, own) => Ok(own.map(<[String]>::to_vec)),
        }
    }

    /// May submit work in this tenant.
    pub fn may_submit(&self, tenant_id: &str) -> Result<(), Failure> {
        Access::Submit.admit(self)?;
        self.is_of(tenant_id)
    }

    /// May change, read and try this owner's profiles. A `provide` token without a tenant is for the operator's, one with
    /// tenants for theirs and no others.
    pub fn may_provide(&self, owner: &ProfileOwner) -> Result<(), Failure> {
        Access::Provide.admit(self)?;
        let allowed = match (self.tenants(), owner) {
            (None, _) => true,
            (Some(tenants), ProfileOwner::Operator) => tenants.is_empty(),
            (Some(tenants), ProfileOwner::Tenant(tenant_id)) => tenants.contains(tenant_id),
        };
        match (allowed, owner) {
            (true, _) => Ok(()),
            (false, ProfileOwner::Operator) => Err(Failure::rule(Rule::ProfileOwner, "this profile is the operator's")),
            (false, ProfileOwner::Tenant(_)) => Err(Failure::rule(Rule::Tenant, "this token is not for that tenant")),
        }
    }

    /// This caller with the rights of a client in one tenant: a trial of a profile is an ordinary run.
    pub fn as_client_of(&self, tenant_id: &str) -> Self {
        match self {
            Self::Service { token_id, role: TokenRole::Provide, .. } => {
                let tenants = [tenant_id.to_owned()].into();
                Self::Service { token_id: *token_id, tenants, role: TokenRole::Client }
            }
            other => other.clone(),
        }
    }

    /// The user whose threads are the only ones that this caller sees. `None` if it sees the threads of all users.
    pub fn sees_threads_of(&self) -> Option<String> {
        match self {
            Self::User { user_id, .. } => Some(user_id.to_string()),
            _ => None,
        }
    }

    /// May read what belongs to this run.
    pub fn may_read(&self, run: &RunRef) -> Result<(), Failure> {
        match self {
            Self::Runner { run_id, .. } if *run_id == run.run_id => Ok(()),
            Self::Runner { .. } => Err(Failure::rule(Rule::Run, "this token is for another run")),
            _ => self.may_see(run),
        }
    }

    /// May see what is in a session. A user's thread is closed to other users; services of the tenant are the platform.
    pub fn may_see<'a>(&self, what: impl Into<Whose<'a>>) -> Result<(), Failure> {
        let Whose { tenant_id, owner } = what.into();
        self.is_of(tenant_id)?;
        match (owner, self.sees_threads_of()) {
            (Some(owner), Some(user)) if owner != user => {
                Err(Failure::rule(Rule::Owner, "this thread belongs to another user"))
            }
            _ => Ok(()),
        }
    }

    /// May cancel what runs in it. The platform may cancel what it sees.
    pub fn may_cancel<'a>(&self, what: impl Into<Whose<'a>>) -> Result<(), Failure> {
        Access::Submit.admit(self)?;
        self.may_see(what)
    }

    /// May send commands, answer permission requests and change the session. In a user's thread, only the user and the
    /// operator may.
    pub fn may_control<'a>(&self, what: impl Into<Whose<'a>>) -> Result<(), Failure> {
        let what = what.into();
        self.may_cancel(what)?;
        match (what.owner, self) {
            (Some(_), Self::Service { .. }) => Err(Failure::rule(
                Rule::Owner,
                "a service may read a user's thread and stop what runs there, and no more",
            )),
            _ => Ok(()),
        }
    }

    /// May act as the runner of this run.
    pub fn may_run(&self, run: &RunRef) -> Result<(), Failure> {
        Access::Run.admit(self)?;
        self.may_read(run)
    }

    pub fn is_of(&self, tenant_id: &str) -> Result<(), Failure> {
        if self.tenants().is_none_or(|tenants| tenants.iter().any(|tenant| tenant == tenant_id)) {
            return Ok(());
        }
        Err(Failure::rule(Rule::Tenant, "this token is not for that tenant"))
    }
}

pub fn unauthenticated(message: &str) -> Failure {
    Failure::new(FailureKind::Unauthenticated, message)
}
