//! The mesh: which domain this server certifies, where its keys lie, and who may take a name.

use std::{net::SocketAddr, path::PathBuf};

use ostler_protocol::{Failure, kernel::runner_jobs::Launcher, mesh::Domain};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Config;

/// Names for agents and people, and messages between them.
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

impl Config {
    pub fn mesh_domain(&self) -> Result<Domain, Failure> {
        let domain = self.mesh.issuer.parse::<Domain>();
        domain.map_err(|fault| Failure::invalid("config", format!("mesh.issuer: {fault}")))
    }

    /// Where everybody reaches what is served of the mesh: beside the configured gateway, or else by the domain's own name,
    /// as this server listens.
    pub fn mesh_base(&self) -> String {
        let configured = self.mesh.gateway_url.as_deref().and_then(|url| {
            let (scheme, rest) = url.split_once("://")?;
            Some(format!("{}://{}", scheme.replacen("ws", "http", 1), rest.split('/').next()?))
        });
        configured.unwrap_or_else(|| {
            let usual = if self.scheme() == "https" { "443" } else { "80" };
            // Which one a 0 becomes is not known beforehand.
            let port = self.server.listen.rsplit(':').next().filter(|port| ![usual, "0"].contains(port));
            let scheme = self.scheme();
            format!("{scheme}://pki.{}{}", self.mesh.issuer, port.map(|port| format!(":{port}")).unwrap_or_default())
        })
    }

    pub fn pki_directory(&self) -> Result<PathBuf, Failure> {
        Ok(self.mesh.pki_directory.clone().unwrap_or(self.data_dir()?.join("pki")))
    }

    /// Whether somebody without an invitation may take a name.
    pub fn registration_is_open(&self) -> bool {
        match self.mesh.registration {
            Registration::Open => true,
            Registration::Invite => false,
            Registration::Loopback => {
                let listens = self.server.listen.parse::<SocketAddr>();
                self.mesh.gateway_url.is_none() && listens.is_ok_and(|address| address.ip().is_loopback())
            }
        }
    }

    /// How the listener is reached.
    pub fn scheme(&self) -> &'static str {
        if self.server.tls_cert.is_some() { "https" } else { "http" }
    }

    /// Certificate and key of the listener's TLS, if it speaks TLS. One without the other is a mistake.
    pub fn tls_files(&self) -> Result<Option<(&PathBuf, &PathBuf)>, Failure> {
        match (&self.server.tls_cert, &self.server.tls_key) {
            (Some(_), Some(_)) if self.runner.launcher == Launcher::Process => Err(Failure::invalid(
                "config",
                "runners as child processes speak plain HTTP; with TLS they are resident",
            )),
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(Failure::invalid("config", "server.tls_cert and server.tls_key go together")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_of_the_mesh_is_found_where_the_server_is_reached() {
        let base = |listen: &str, is_tls: bool, gateway: Option<&str>| {
            let mut config = Config::default();
            config.server.listen = listen.into();
            config.server.tls_cert = is_tls.then(|| "web.crt".into());
            config.mesh.issuer = "probe.test".into();
            config.mesh.gateway_url = gateway.map(str::to_owned);
            config.mesh_base()
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
