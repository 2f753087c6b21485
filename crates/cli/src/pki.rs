//! `ostler pki`: the mesh's authorities and the names that they certify. The keys are made and shown on the machine where
//! they lie; names are given and taken by its server.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use ostler_client::mesh::PublishedCertificate;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    mesh::{
        Aid,
        auth::not_registered,
        identities::{CreateInvite, Identity, IssueCertificate, ListIdentities, RevocationReason, RevokeIdentity},
    },
};
use ostler_server::{
    Config,
    config::Overrides,
    pki::{Pki, Supplied},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::json;

use crate::{
    confirm::Confirm,
    connect::Connection,
    environment, errors, exit_codes,
    output::{self, Output, line},
    table::table,
    times::{Times, now, parse_ms},
};

/// Make and show the mesh's keys; certify, list, revoke and invite names
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki init --mesh-issuer probe.test\n  ostler pki show\n  \
    ostler pki issue alice.probe.test --public-key alice.pub\n  ostler pki revoke alice.probe.test --yes")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Init(InitArgs),
    Show(ShowArgs),
    List(ListArgs),
    Issue(IssueArgs),
    Revoke(RevokeArgs),
    Invite(InviteArgs),
}

#[derive(clap::Args, Debug)]
struct Place {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain whose names are certified [default: the configured one]
    #[arg(long, value_name = "DOMAIN")]
    mesh_issuer: Option<String>,
}

/// Make the keys of a domain in the data directory, or take over an issuer that somebody else has made
///
/// `ostler serve` makes them by itself at its first start. What is there already stays as it is.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki init --mesh-issuer probe.test\n  \
    ostler pki init --mesh-issuer probe.test --root root.crt --registry registry.crt --issuer issuer.crt --issuer-key issuer.key")]
struct InitArgs {
    #[command(flatten)]
    place: Place,
    /// The root's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "registry", requires = "issuer", requires = "issuer_key")]
    root: Option<PathBuf>,
    /// The registry's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "root")]
    registry: Option<PathBuf>,
    /// The issuer's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "root")]
    issuer: Option<PathBuf>,
    /// The issuer's key, PKCS#8 in PEM, on P-384; it is kept sealed
    #[arg(long, value_name = "FILE", requires = "root")]
    issuer_key: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Show the authorities of a domain, and the key that clients pin to believe its list of roots
///
/// It makes nothing. Where the keys of one domain lie, that is the one.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki show\n  ostler pki show -o json | jq -r .rootFingerprint")]
struct ShowArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    output: Output,
}

/// List names with their newest certificates, the newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki list\n  ostler pki list -o jsonl | jq -r .aid")]
struct ListArgs {
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Give a name a certificate, whatever the policy of registration is; another key revokes the last one
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki issue alice.probe.test --public-key alice.pub\n  \
    openssl ec -in alice.key -pubout | ostler pki issue alice.probe.test --public-key -")]
struct IssueArgs {
    aid: Aid,
    /// The public key, on P-256, in PEM; `-` reads it from stdin
    #[arg(long, value_name = "FILE")]
    public_key: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Revoke a name's certificate: its logins end, and nobody believes it any more
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki revoke alice.probe.test --reason key-compromise --yes")]
struct RevokeArgs {
    aid: Aid,
    #[arg(long, value_enum, default_value = "unspecified")]
    reason: Reason,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Reason {
    Unspecified,
    KeyCompromise,
    Superseded,
    CessationOfOperation,
}

impl From<Reason> for RevocationReason {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Unspecified => Self::Unspecified,
            Reason::KeyCompromise => Self::KeyCompromise,
            Reason::Superseded => Self::Superseded,
            Reason::CessationOfOperation => Self::CessationOfOperation,
        }
    }
}

/// Invite somebody to register a name, where names are given by invitation; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki invite\n  ostler pki invite alice.probe.test --expires-in 1d")]
struct InviteArgs {
    /// The name it is for [default: any]
    aid: Option<Aid>,
    /// When it ends: 15m, 12h, 7d; 90 days at most [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

impl Args {
    /// Whether it talks to a server.
    pub fn is_remote(&self) -> bool {
        !matches!(self.verb, Verb::Init(_) | Verb::Show(_))
    }
}

pub async fn pki(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Init(args) => init(connection, args),
        Verb::Show(args) => show(connection, args),
        Verb::List(args) => list(connection, args).await,
        Verb::Issue(args) => issue(connection, args).await,
        Verb::Revoke(args) => revoke(connection, args).await,
        Verb::Invite(args) => invite(connection, args).await,
    }
}

/// The authorities of a domain.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Authorities {
    domain: String,
    root_certificate: PathBuf,
    root_fingerprint: String,
    issuer_fingerprint: String,
    issuer_until: Timestamp,
    /// What clients pin to believe the list of roots.
    authority_public_key: String,
}

impl Place {
    fn load(&self, connection: &Connection) -> Result<Config, Failure> {
        let overrides = Overrides {
            data_dir: connection.data_dir_flag().cloned(),
            mesh_issuer: self.mesh_issuer.clone(),
            ..Overrides::default()
        };
        Config::load(self.config.as_deref(), &environment::current(), overrides)
    }
}

fn told(config: &Config, pki: &Pki, output: &Output) -> Result<u8, Failure> {
    let authorities = Authorities {
        domain: pki.domain().to_string(),
        root_certificate: config.pki_directory()?.join("root.crt"),
        root_fingerprint: pki.root().fingerprint(),
        issuer_fingerprint: pki.issuer().certificate().fingerprint(),
        issuer_until: pki.issuer().certificate().not_after(),
        authority_public_key: pki.authority().to_pem(),
    };
    output.one(&authorities, || {
        let Authorities { domain, root_fingerprint, issuer_fingerprint, issuer_until, authority_public_key, .. } =
            &authorities;
        let root = authorities.root_certificate.display();
        format!(
            "domain     {domain}\nroot       {root}\n           {root_fingerprint}\nissuer     {issuer_fingerprint}\n           \
             until {issuer_until}\nlist of roots is signed by\n{authority_public_key}"
        )
    });
    Ok(exit_codes::OK)
}

fn init(connection: &Connection, args: &InitArgs) -> Result<u8, Failure> {
    let config = args.place.load(connection)?;
    let pki = match (&args.root, &args.registry, &args.issuer, &args.issuer_key) {
        (Some(root), Some(registry), Some(issuer), Some(key)) => {
            let supplied = Supplied {
                root: read(root)?,
                registry: read(registry)?,
                issuer: read(issuer)?,
                issuer_key: read(key)?.into(),
            };
            Pki::import(&config, &supplied, now())?
        }
        _ => Pki::open(&config, now())?,
    };
    told(&config, &pki, &args.output)
}

fn show(connection: &Connection, args: &ShowArgs) -> Result<u8, Failure> {
    let mut config = args.place.load(connection)?;
    config.mesh.issuer = domain_here(&config, args.place.mesh_issuer.is_some())?;
    told(&config, &Pki::read(&config, now())?, &args.output)
}

/// The configured domain if its keys are here, else the only one whose keys are, unless another was chosen.
fn domain_here(config: &Config, is_chosen: bool) -> Result<String, Failure> {
    let (configured, here) = (config.mesh_domain()?, Pki::domains(config)?);
    match here.as_slice() {
        all if all.contains(&configured) => Ok(configured.to_string()),
        all if all.is_empty() || is_chosen => {
            let message = format!("no keys of {configured} in {}", config.pki_directory()?.display());
            Err(errors::hinted(
                FailureKind::NotFound,
                message,
                "`ostler pki init` makes them, and so does `ostler serve`",
            ))
        }
        [only] => Ok(only.to_string()),
        several => {
            let all: Vec<&str> = several.iter().map(|domain| domain.as_str()).collect();
            let message = format!("keys of several domains are here: {}", all.join(", "));
            Err(errors::usage(message, "choose one with `--mesh-issuer`"))
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let text =
        if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|error| Failure::invalid("file", format!("{}: {error}", path.display())))
}

async fn list(connection: &Connection, args: &ListArgs) -> Result<u8, Failure> {
    let page = connection.client()?.list_identities(&ListIdentities { limit: Some(args.limit), cursor: None }).await?;
    let (identities, has_more) = (&page.identities, page.next_cursor.is_some());
    let nothing = "no names; agents register them, or: ostler pki issue AID --public-key FILE\n";
    args.output.page(identities, has_more, nothing, || render(identities, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

fn render(identities: &[Identity], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = identities.iter().map(|identity| {
        let state = if identity.revoked_at.is_some() { "revoked" } else { "good" };
        vec![
            line(identity.aid.as_str(), 200),
            state.to_owned(),
            times.ago(identity.certified_at, now),
            identity.serial.clone(),
        ]
    });
    table(&["AID", "CERTIFICATE", "CERTIFIED", "SERIAL"], rows.collect(), &[0, 3], width)
}

async fn issue(connection: &Connection, args: &IssueArgs) -> Result<u8, Failure> {
    let public_key = public_key(&SecretString::from(read(&args.public_key)?)).ok_or_else(|| {
        let message = format!("{}: not one `PUBLIC KEY` in PEM; nothing was sent", args.public_key.display());
        errors::usage(message, "a private key stays with its owner; `openssl ec -in KEY -pubout` writes the public one")
    })?;
    let asked = IssueCertificate { aid: args.aid.clone(), public_key };
    let identity = connection.client()?.issue_certificate(&asked).await?;
    args.output.one(&identity, || identity.certificate.clone());
    Ok(exit_codes::OK)
}

/// What was given may be a private key by mistake, so it is wiped.
fn public_key(pem: &SecretString) -> Option<String> {
    ostler_client::mesh::public_key(pem.expose_secret())
}

async fn revoke(connection: &Connection, args: &RevokeArgs) -> Result<u8, Failure> {
    if args.confirm.dry_run {
        return would_revoke(connection, args).await;
    }
    if !args.confirm.ask(&format!("revoke the certificate of {}?", args.aid))? {
        return Ok(exit_codes::OK);
    }
    let asked = RevokeIdentity { reason: args.reason.into() };
    let revoked = connection.client()?.revoke_identity(args.aid.as_str(), &asked).await?;
    if revoked.revoked_at.is_none() {
        let message = format!("the server answered, but {} is not revoked: certificate {}", args.aid, revoked.serial);
        return Err(errors::hinted(
            FailureKind::StateConflict,
            message,
            "ask again; `ostler pki list` shows how it stands",
        ));
    }
    args.output.one(&revoked, || format!("{} revoked\n", revoked.aid));
    Ok(exit_codes::OK)
}

async fn would_revoke(connection: &Connection, args: &RevokeArgs) -> Result<u8, Failure> {
    let aid = &args.aid;
    let found = connection.client()?.find_certificate(aid.as_str()).await?.ok_or_else(|| not_registered(aid))?;
    let PublishedCertificate { serial, not_after, is_revoked } = found;
    let would = json!({"aid": aid, "serial": serial, "notAfter": not_after, "wouldRevoke": !is_revoked});
    args.output.one(&would, || match is_revoked {
        true => format!("{aid} is revoked already: certificate {serial}\n"),
        false => format!("would revoke {aid}: certificate {serial}, good until {not_after}\n"),
    });
    args.confirm.ask("").map(|_| exit_codes::OK)
}

async fn invite(connection: &Connection, args: &InviteArgs) -> Result<u8, Failure> {
    let asked = CreateInvite { aid: args.aid.clone(), expires_in_ms: args.expires_in };
    let invite = connection.client()?.create_invite(&asked).await?;
    args.output.one(&invite, || format!("{}\n", invite.invite));
    output::words(&format!("good for one name until {}; it is not kept and not shown again\n", invite.expires_at));
    Ok(exit_codes::OK)
}
