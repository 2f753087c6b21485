//! `ostler pki`: makes and shows the keys of the mesh's authorities, on the machine where they are stored.

use std::path::PathBuf;

use clap::Subcommand;
use ostler_mesh::{
    config::MeshSection,
    pki::{Pki, Supplied},
};
use ostler_protocol::{Failure, FailureKind, Timestamp};
use ostler_server::{Config, config::Overrides};
use serde::Serialize;

use crate::{
    commands::{mesh::identities, serve::dialects},
    connection::Connection,
    environment, errors, exit_codes,
    terminal::{output::Output, times::now},
};

/// Make and show the keys of the mesh's authorities
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki init --mesh-issuer probe.test\n  ostler pki show")]
pub(crate) struct PkiArgs {
    #[command(subcommand)]
    verb: PkiVerb,
}

#[derive(Subcommand, Debug)]
enum PkiVerb {
    Init(InitPkiArgs),
    Show(ShowPkiArgs),
    #[command(hide = true)]
    List(identities::ListIdentitiesArgs),
    #[command(hide = true)]
    Issue(identities::IssueIdentityArgs),
    #[command(hide = true)]
    Revoke(identities::RevokeIdentityArgs),
    #[command(hide = true)]
    Invite(identities::InviteIdentityArgs),
}

#[derive(clap::Args, Debug)]
struct AuthorityArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain whose names are certified [default: the configured one]
    #[arg(long, value_name = "DOMAIN")]
    mesh_issuer: Option<String>,
}

/// Make the keys of a domain in the data directory, or import an existing issuer
///
/// `ostler serve` makes them at its first start. Existing keys are not changed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki init --mesh-issuer probe.test\n  \
    ostler pki init --mesh-issuer probe.test --root root.crt \\\n      --registry registry.crt --issuer issuer.crt --issuer-key issuer.key")]
struct InitPkiArgs {
    #[command(flatten)]
    authority: AuthorityArgs,
    /// The root's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "registry", requires = "issuer", requires = "issuer_key")]
    root: Option<PathBuf>,
    /// The registry's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "root")]
    registry: Option<PathBuf>,
    /// The issuer's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "root")]
    issuer: Option<PathBuf>,
    /// The issuer's key, PKCS#8 in PEM, on P-384; it is stored encrypted
    #[arg(long, value_name = "FILE", requires = "root")]
    issuer_key: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Show the authorities of a domain, and the key that clients pin to trust its list of roots
///
/// It changes nothing. If the keys of only one domain exist, that domain is shown.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler pki show\n  ostler pki show -o json | jq -r .rootFingerprint")]
struct ShowPkiArgs {
    #[command(flatten)]
    authority: AuthorityArgs,
    #[command(flatten)]
    output: Output,
}

impl PkiArgs {
    /// Whether the command talks to a server.
    pub(crate) fn is_remote(&self) -> bool {
        !matches!(self.verb, PkiVerb::Init(_) | PkiVerb::Show(_))
    }
}

pub(crate) async fn pki(connection: &Connection, args: &PkiArgs) -> Result<u8, Failure> {
    match &args.verb {
        PkiVerb::Init(args) => init(connection, args),
        PkiVerb::Show(args) => show(connection, args),
        PkiVerb::List(args) => identities::list(connection, args).await,
        PkiVerb::Issue(args) => identities::issue(connection, args).await,
        PkiVerb::Revoke(args) => identities::revoke(connection, args).await,
        PkiVerb::Invite(args) => identities::invite(connection, args).await,
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
    /// The key that clients pin to trust the list of roots.
    authority_public_key: String,
}

impl AuthorityArgs {
    fn load(&self, connection: &Connection) -> Result<Config, Failure> {
        let overrides = Overrides {
            data_dir: connection.data_dir_flag().cloned(),
            keys: self.mesh_issuer.iter().map(|issuer| ("mesh.issuer", issuer.clone())).collect(),
            ..Overrides::default()
        };
        Config::load(self.config.as_deref(), &environment::current(), overrides, &dialects().sections())
    }
}

fn print_authorities(config: &Config, pki: &Pki, output: &Output) -> Result<u8, Failure> {
    let authorities = Authorities {
        domain: pki.domain().to_string(),
        root_certificate: config.section::<MeshSection>().pki_directory(config)?.join("root.crt"),
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

fn init(connection: &Connection, args: &InitPkiArgs) -> Result<u8, Failure> {
    let config = args.authority.load(connection)?;
    let pki = match (&args.root, &args.registry, &args.issuer, &args.issuer_key) {
        (Some(root), Some(registry), Some(issuer), Some(key)) => {
            let supplied = Supplied {
                root: identities::read(root)?,
                registry: identities::read(registry)?,
                issuer: identities::read(issuer)?,
                issuer_key: identities::read(key)?.into(),
            };
            Pki::import(&config, &supplied, now())?
        }
        _ => Pki::open(&config, now())?,
    };
    print_authorities(&config, &pki, &args.output)
}

fn show(connection: &Connection, args: &ShowPkiArgs) -> Result<u8, Failure> {
    let mut config = args.authority.load(connection)?;
    let issuer = existing_domain(&config, args.authority.mesh_issuer.is_some())?;
    config.change(|section: &mut MeshSection| section.issuer = issuer);
    print_authorities(&config, &Pki::read(&config, now())?, &args.output)
}

/// The configured domain if its keys exist; else the only domain with keys, unless a domain was named.
fn existing_domain(config: &Config, is_named: bool) -> Result<String, Failure> {
    let (configured, existing) = (config.section::<MeshSection>().domain()?, Pki::domains(config)?);
    match existing.as_slice() {
        all if all.contains(&configured) => Ok(configured.to_string()),
        all if all.is_empty() || is_named => {
            let message = format!(
                "no keys of {configured} in {}",
                config.section::<MeshSection>().pki_directory(config)?.display()
            );
            Err(errors::hinted(
                FailureKind::NotFound,
                message,
                "`ostler pki init` makes them, and so does `ostler serve`",
            ))
        }
        [only] => Ok(only.to_string()),
        several => {
            let all: Vec<&str> = several.iter().map(|domain| domain.as_str()).collect();
            let message = format!("there are keys of several domains: {}", all.join(", "));
            Err(errors::usage(message, "choose one with `--mesh-issuer`"))
        }
    }
}
