//! Configuration of the mesh: which domain this server certifies, where its keys are, and who may register a name.

use std::{net::SocketAddr, path::PathBuf};

use ostler_protocol::{Failure, Rule, mesh::Domain};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, Section};

/// Identities, and messages between them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSection {
    /// The domain whose names this server certifies: an identity is `name.domain`.
    pub issuer: String,
    /// The directory of the authorities' sealed keys; by default `pki` in the data directory. Servers that
    /// share a Postgres must share it and `secrets.key`.
    #[schema(value_type = Option<String>)]
    pub pki_directory: Option<PathBuf>,
    /// Who may register a name: `open` (every client), `invite` (clients with an invitation), or `loopback`:
    /// open if the server listens on a loopback address and `gateway_url` is not set, otherwise by invitation.
    pub registration: Registration,
    /// Maximum number of names that one address may register per hour.
    pub registrations_per_hour_max: u32,
    /// Maximum number of names that all addresses together may register per hour at one server.
    pub registrations_per_hour_total_max: u32,
    /// The gateway's URL that clients are given, if it differs from the address they used, for example behind a
    /// proxy.
    pub gateway_url: Option<String>,
}

impl Default for MeshSection {
    fn default() -> Self {
        Self {
            issuer: "localhost.test".into(),
            pki_directory: None,
            registration: Registration::Loopback,
            registrations_per_hour_max: 1_000,
            registrations_per_hour_total_max: 10_000,
            gateway_url: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    #[default]
    Loopback,
    Open,
    Invite,
}

impl Section for MeshSection {
    const NAME: &'static str = "mesh";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        self.domain().err().into_iter().collect()
    }
}

impl MeshSection {
    pub fn domain(&self) -> Result<Domain, Failure> {
        let domain = self.issuer.parse::<Domain>();
        domain.map_err(|fault| {
            Failure::invalid(Rule::Config, format!("mesh.issuer: {fault}")).detail("key", "mesh.issuer")
        })
    }

    /// The base URL of the mesh's HTTP resources: the host of the configured gateway, or else the domain's own name with the
    /// port that this server listens on.
    pub fn base_url(&self, config: &Config) -> String {
        let configured = self.gateway_url.as_deref().and_then(|url| {
            let (scheme, rest) = url.split_once("://")?;
            Some(format!("{}://{}", scheme.replacen("ws", "http", 1), rest.split('/').next()?))
        });
        configured.unwrap_or_else(|| {
            let usual = if config.scheme() == "https" { "443" } else { "80" };
            // The port that a 0 becomes is not known beforehand.
            let port = config.server.listen.rsplit(':').next().filter(|port| ![usual, "0"].contains(port));
            let scheme = config.scheme();
            format!("{scheme}://pki.{}{}", self.issuer, port.map(|port| format!(":{port}")).unwrap_or_default())
        })
    }

    pub fn pki_directory(&self, config: &Config) -> Result<PathBuf, Failure> {
        Ok(self.pki_directory.clone().unwrap_or(config.data_dir()?.join("pki")))
    }

    /// Whether a client without an invitation may register a name.
    pub fn registration_is_open(&self, config: &Config) -> bool {
        match self.registration {
            Registration::Open => true,
            Registration::Invite => false,
            Registration::Loopback => {
                let listens = config.server.listen.parse::<SocketAddr>();
                self.gateway_url.is_none() && listens.is_ok_and(|address| address.ip().is_loopback())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_url_is_where_clients_reach_the_server() {
        let base = |listen: &str, is_tls: bool, gateway: Option<&str>| {
            let mut config = Config::default();
            config.server.listen = listen.into();
            config.server.tls_cert = is_tls.then(|| "web.crt".into());
            let gateway_url = gateway.map(str::to_owned);
            MeshSection { issuer: "probe.test".into(), gateway_url, ..MeshSection::default() }.base_url(&config)
        };
        assert_eq!(base("0.0.0.0:80", false, None), "http://pki.probe.test");
        assert_eq!(base("0.0.0.0:443", true, None), "https://pki.probe.test");
        assert_eq!(base("[::]:8443", true, None), "https://pki.probe.test:8443");
        assert_eq!(base("127.0.0.1:0", false, None), "http://pki.probe.test");
        let proxied = Some("wss://gateway.probe.test:9443/aun");
        assert_eq!(base("127.0.0.1:7000", false, proxied), "https://gateway.probe.test:9443");
        assert_eq!(base("127.0.0.1:7000", false, Some("ws://10.0.0.1")), "http://10.0.0.1");
    }
}
