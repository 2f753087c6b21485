//! Who is calling. Closed by default: no token, no entry. Tokens are compared by their hashes.

use std::sync::Arc;

use ostler_protocol::{
    Failure, FailureKind,
    ids::{RunId, RunnerJobId, TokenId, UserId},
    tokens::TokenRole,
};

use crate::app::RunRef;

mod authenticator;
mod issuers;
mod key_sets;
mod tokens;

pub use authenticator::Authenticator;
pub use issuers::Issuers;
pub use tokens::{RUN, SERVICE, mint, operator_token, random_secret_file, signing_key, token_hash, unhex};

#[derive(Clone, Debug, PartialEq)]
pub enum Principal {
    /// The owner of this installation: everything, everywhere.
    Operator,
    /// A platform, in its tenants.
    Service { token_id: TokenId, tenants: Arc<[String]>, role: TokenRole },
    /// A person, in their tenants.
    User { user_id: UserId, name: Arc<str>, tenants: Arc<[String]> },
    /// A runner that was started for one run.
    Runner { run_id: RunId, runner_job_id: RunnerJobId },
}

/// What an operation asks of its caller, before it is known which run or tenant it is about. Each operation declares
/// one, as the `security` of its attribute; the gate holds it, and the document shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, without a token; with `--require-auth`, everybody with one.
    Public,
    /// Whoever has a signed URL. It is all the proof there is, so nobody is asked for a token, nor a page for its origin.
    Signed,
    /// Everybody who has a tenant: lists, sessions, what this server offers.
    Browse,
    /// Who may see a run: its tenant's callers, and its own runner.
    Read,
    /// Who may ask for work and stop it.
    Submit,
    /// Who may look after provider profiles: platforms, for the whole installation.
    Provide,
    /// Who may carry a run out.
    Run,
    /// Who may talk to agents in threads of their own: users. The operator is the user `local`.
    Chat,
    /// The operator alone.
    Operate,
}

impl Access {
    pub const ALL: [Self; 9] = [
        Self::Public,
        Self::Signed,
        Self::Browse,
        Self::Read,
        Self::Submit,
        Self::Provide,
        Self::Run,
        Self::Chat,
        Self::Operate,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Signed => "signed",
            Self::Browse => "browse",
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Provide => "provide",
            Self::Run => "run",
            Self::Chat => "chat",
            Self::Operate => "operate",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|access| access.as_str() == text)
    }

    fn refusal(self) -> &'static str {
        match self {
            Self::Public | Self::Signed | Self::Read => "this needs a token",
            Self::Browse => "a runner sees its own run only",
            Self::Submit => "runners may not submit work",
            Self::Provide => "provider profiles are for services, not for users and runners",
            Self::Run => "this token may not act as a runner",
            Self::Chat => "threads are for users, not for services and runners",
            Self::Operate => "only the operator may do this",
        }
    }

    /// The one place that says which kind of caller may do which kind of thing.
    pub fn admit(self, caller: &Principal) -> Result<(), Failure> {
        use Principal::{Operator, Runner, Service, User};
        let admitted = match (self, caller) {
            (_, Operator) | (Self::Public | Self::Signed | Self::Read, _) => true,
            (Self::Browse, _) => !matches!(caller, Runner { .. }),
            (Self::Submit, _) => matches!(caller, User { .. } | Service { role: TokenRole::Client, .. }),
            (Self::Provide, _) => matches!(caller, Service { role: TokenRole::Client, .. }),
            (Self::Run, _) => matches!(caller, Runner { .. } | Service { role: TokenRole::Runner, .. }),
            (Self::Chat, _) => matches!(caller, User { .. }),
            (Self::Operate, _) => false,
        };
        if admitted { Ok(()) } else { Err(forbidden("role", self.refusal())) }
    }
}

impl Principal {
    /// Says who it was, for audit facts.
    pub fn name(&self) -> String {
        match self {
            Self::Operator => "operator".into(),
            Self::Service { token_id, .. } => format!("service:{token_id}"),
            Self::User { name, .. } => format!("user:{name}"),
            Self::Runner { runner_job_id, .. } => format!("runner:{runner_job_id}"),
        }
    }

    /// `None`: every tenant.
    pub fn tenants(&self) -> Option<&[String]> {
        match self {
            Self::Operator => None,
            Self::Service { tenants, .. } | Self::User { tenants, .. } => Some(tenants),
            Self::Runner { .. } => Some(&[]),
        }
    }

    /// The tenants a list covers: the one that was asked for, or all the caller may see. `None`: every tenant.
    pub fn tenants_within(&self, asked: Option<&str>) -> Result<Option<Vec<String>>, Failure> {
        match (asked, self.tenants()) {
            (Some(tenant), Some(own)) if !own.iter().any(|t| t == tenant) => {
                Err(forbidden("tenant", "this token is not for that tenant"))
            }
            (Some(tenant), _) => Ok(Some(vec![tenant.to_owned()])),
            (None, own) => Ok(own.map(<[String]>::to_vec)),
        }
    }

    /// May ask for work in this tenant.
    pub fn may_submit(&self, tenant_id: &str) -> Result<(), Failure> {
        Access::Submit.admit(self)?;
        self.is_of(tenant_id)
    }

    /// May read what belongs to this run.
    pub fn may_read(&self, run: &RunRef) -> Result<(), Failure> {
        match self {
            Self::Runner { run_id, .. } if *run_id == run.run_id => Ok(()),
            Self::Runner { .. } => Err(forbidden("run", "this token is for another run")),
            _ => self.is_of(&run.tenant_id),
        }
    }

    /// May command, cancel and answer for this run.
    pub fn may_control(&self, run: &RunRef) -> Result<(), Failure> {
        self.may_submit(&run.tenant_id)
    }

    /// May act as the runner of this run.
    pub fn may_run(&self, run: &RunRef) -> Result<(), Failure> {
        Access::Run.admit(self)?;
        self.may_read(run)
    }

    fn is_of(&self, tenant_id: &str) -> Result<(), Failure> {
        if self.tenants().is_none_or(|tenants| tenants.iter().any(|tenant| tenant == tenant_id)) {
            return Ok(());
        }
        Err(forbidden("tenant", "this token is not for that tenant"))
    }
}

pub fn forbidden(rule: &'static str, message: &str) -> Failure {
    Failure::rule(FailureKind::Forbidden, rule, message)
}

pub fn unauthenticated(message: &str) -> Failure {
    Failure::new(FailureKind::Unauthenticated, message)
}
