//! Who is calling. Closed by default: no token, no entry. Tokens are compared by their hashes.

use std::{
    collections::HashMap,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    ids::{RunId, RunnerJobId, TokenId},
};
use ostler_store::Db;
use quick_cache::sync::Cache;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    app::{RunRef, store_failure},
    clock,
};

pub const TOKEN_PREFIX: &str = "ost_";
const TOKEN_BYTES_MAX: usize = 256;
const SERVICES_REMEMBERED: usize = 1_024;
const REMEMBERED: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Debug, PartialEq)]
pub enum Principal {
    /// The owner of this installation: everything, everywhere.
    Operator,
    /// A platform, in its tenants.
    Service { token_id: TokenId, tenants: Arc<[String]>, role: Role },
    /// A runner that was started for one run.
    Runner { run_id: RunId, runner_job_id: RunnerJobId },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    Client,
    Runner,
}

impl Principal {
    /// Says who it was, for audit facts.
    pub fn name(&self) -> String {
        match self {
            Self::Operator => "operator".into(),
            Self::Service { token_id, .. } => format!("service:{token_id}"),
            Self::Runner { runner_job_id, .. } => format!("runner:{runner_job_id}"),
        }
    }

    /// `None`: every tenant.
    pub fn tenants(&self) -> Option<&[String]> {
        match self {
            Self::Operator => None,
            Self::Service { tenants, .. } => Some(tenants),
            Self::Runner { .. } => Some(&[]),
        }
    }

    fn in_tenant(&self, tenant_id: &str) -> bool {
        self.tenants().is_none_or(|tenants| tenants.iter().any(|t| t == tenant_id))
    }

    /// May ask for work in this tenant.
    pub fn may_submit(&self, tenant_id: &str) -> Result<(), Failure> {
        match self {
            Self::Service { role: Role::Runner, .. } | Self::Runner { .. } => {
                Err(forbidden("role", "runners may not submit work"))
            }
            _ if self.in_tenant(tenant_id) => Ok(()),
            _ => Err(forbidden("tenant", "this token is not for that tenant")),
        }
    }

    /// May read what belongs to this run.
    pub fn may_read(&self, run: &RunRef) -> Result<(), Failure> {
        match self {
            Self::Runner { run_id, .. } if *run_id == run.run_id => Ok(()),
            Self::Runner { .. } => Err(forbidden("run", "this token is for another run")),
            _ if self.in_tenant(&run.tenant_id) => Ok(()),
            _ => Err(forbidden("tenant", "this token is not for that tenant")),
        }
    }

    /// May command, cancel and answer for this run.
    pub fn may_control(&self, run: &RunRef) -> Result<(), Failure> {
        self.may_submit(&run.tenant_id)
    }

    /// May act as the runner of this run.
    pub fn may_run(&self, run: &RunRef) -> Result<(), Failure> {
        match self {
            Self::Service { role: Role::Client, .. } => Err(forbidden("role", "this token may not act as a runner")),
            _ => self.may_read(run),
        }
    }
}

pub fn forbidden(rule: &'static str, message: &str) -> Failure {
    Failure::rule(FailureKind::Forbidden, rule, message)
}

pub fn token_hash(token: &str) -> String {
    ostler_protocol::json::hex(&ostler_crypto::sha256(token.as_bytes()))
}

/// A new token: a prefix that names its kind, and 256 random bits.
pub fn mint(kind: &str) -> SecretString {
    let mut random = [0; 32];
    clock::fill(&mut random);
    SecretString::from(format!("{TOKEN_PREFIX}{kind}_{}", ostler_protocol::json::hex(&random)))
}

pub struct Authenticator {
    operator_hash: String,
    /// Service tokens seen lately, each with when to look again: a revoked one works no longer than that.
    services: Cache<String, (Principal, Timestamp)>,
    /// Tokens of runners inside this process; they never leave it.
    residents: Mutex<HashMap<String, Principal>>,
}

impl Authenticator {
    pub fn new(operator: &SecretString) -> Self {
        let operator_hash = token_hash(operator.expose_secret());
        Self { operator_hash, services: Cache::new(SERVICES_REMEMBERED), residents: Mutex::default() }
    }

    pub async fn authenticate(&self, db: &Db, token: &str, now: Timestamp) -> Result<Principal, Failure> {
        if !token.starts_with(TOKEN_PREFIX) || token.len() > TOKEN_BYTES_MAX {
            return Err(unauthenticated("the token is not valid"));
        }
        let hash = token_hash(token);
        if ostler_crypto::equal(hash.as_bytes(), self.operator_hash.as_bytes()) {
            return Ok(Principal::Operator);
        }
        if let Some(principal) = self.residents.lock().expect("never poisoned").get(&hash) {
            return Ok(principal.clone());
        }
        if let Some((principal, until)) = self.services.get(&hash)
            && now < until
        {
            return Ok(principal);
        }
        let token = ostler_store::tokens::find_by_hash(db, &hash).await.map_err(store_failure)?;
        let token = token.ok_or_else(|| unauthenticated("the token is not valid"))?;
        let role = if token.role == "runner" { Role::Runner } else { Role::Client };
        let principal = Principal::Service { token_id: token.token_id, tenants: token.tenants.into(), role };
        let until = now.checked_add(REMEMBERED).unwrap_or(now);
        self.services.insert(hash, (principal.clone(), until));
        Ok(principal)
    }

    pub fn admit_resident(&self, run_id: RunId, runner_job_id: RunnerJobId) -> ResidentToken {
        let token = mint("run");
        let hash = token_hash(token.expose_secret());
        let principal = Principal::Runner { run_id, runner_job_id };
        self.residents.lock().expect("never poisoned").insert(hash.clone(), principal);
        ResidentToken { token, hash }
    }

    pub fn dismiss_resident(&self, token: &ResidentToken) {
        self.residents.lock().expect("never poisoned").remove(&token.hash);
    }
}

pub struct ResidentToken {
    pub token: SecretString,
    hash: String,
}

pub fn unauthenticated(message: &str) -> Failure {
    Failure::new(FailureKind::Unauthenticated, message)
}

/// The operator's token: made on the first start, readable by the owner only.
pub fn operator_token(data_dir: &Path) -> Result<(SecretString, PathBuf), Failure> {
    let path = data_dir.join("token");
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().len() >= 32 => {
            let mode = std::fs::metadata(&path).map_err(Failure::internal)?.permissions().mode();
            if mode & 0o077 != 0 {
                let message = format!("{} can be read by others; run: chmod 600 {0}", path.display());
                return Err(Failure::rule(FailureKind::InfraFailed, "token-file-mode", message));
            }
            return Ok((SecretString::from(text.trim().to_owned()), path));
        }
        Ok(_) => {
            let message = format!("{} does not hold a token; remove it to have one made", path.display());
            return Err(Failure::rule(FailureKind::InfraFailed, "token-file", message));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {error}", path.display())));
        }
    }
    let token = mint("op");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {e}", path.display())))?;
    let written = writeln!(file, "{}", token.expose_secret()).and_then(|()| file.sync_all());
    written.map_err(|e| Failure::rule(FailureKind::InfraFailed, "token-file", format!("{}: {e}", path.display())))?;
    Ok((token, path))
}
