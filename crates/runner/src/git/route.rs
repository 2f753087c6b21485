//! The route to a repository's server. git and ssh connect by themselves, so its name is resolved here, every address is
//! checked, and git and ssh connect to the checked addresses: a name that resolves differently later has no effect.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use ostler_client::outgoing;
use ostler_protocol::{
    kernel::workspaces::{GitRef, GitServer},
    outgoing::OutgoingRules,
};

#[derive(Debug, Default, PartialEq)]
pub(super) struct Route {
    /// The URL for git.
    pub url: String,
    /// A setting of git that pins the server's addresses.
    pub setting: Option<String>,
    /// The command line of ssh.
    pub ssh: Option<String>,
}

impl Route {
    /// `Err`: the name cannot be resolved, or has no address that may be connected to.
    pub(super) async fn find(rules: &OutgoingRules, wanted: &GitRef) -> io::Result<Self> {
        let Some(server) = &wanted.server else { return Ok(Self { url: wanted.repo_url.clone(), ..Self::default() }) };
        let addresses = outgoing::addresses(rules, &server.host, server.port()).await?;
        Ok(Self::through(wanted, server, &addresses))
    }

    fn through(wanted: &GitRef, server: &GitServer, addresses: &[SocketAddr]) -> Self {
        let url = wanted.repo_url.clone();
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
        match (wanted.protocol, addresses.first()) {
            ("ssh", Some(address)) => Self { url, ssh: Some(ssh(server, *address)), setting: None },
            // git's own protocol has no setting for addresses, so the URL gets the address.
            ("git", Some(address)) => {
                let (host, rest) = (host_of_address(*address), &url[wanted.path_start()..]);
                Self { url: format!("git://{host}:{}{rest}", server.port()), ..Self::default() }
            }
            // A URL with an address needs no pin; the address was checked.
            _ if server.host.parse::<IpAddr>().is_ok() => Self { url, ..Self::default() },
            _ => {
                let addresses: Vec<_> = addresses.into_iter().map(host_of_address).collect();
                let pin = format!("http.curloptResolve={}:{}:{}", server.host, server.port(), addresses.join(","));
                Self { url, setting: Some(pin), ssh: None }
            }
        }
    }
}

/// Options on the command line win over everything in files. The server's key is looked up under its name.
fn ssh(server: &GitServer, address: IpAddr) -> String {
    let known_as = match server.port {
        Some(port) if port != 22 => format!("[{}]:{port}", server.host),
        _ => server.host.clone(),
    };
    format!(
        "ssh -oBatchMode=yes -oHostName={address} -oHostKeyAlias='{known_as}' -oCheckHostIP=no -oProxyCommand=none \
         -oProxyJump=none -oPermitLocalCommand=no -oForwardAgent=no -oClearAllForwardings=yes -oCanonicalizeHostname=no"
    )
}

fn host_of_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{RawJson, kernel::workspaces::WorkspaceRef};
    use serde_json::json;

    use super::*;

    fn wanted(url: &str) -> GitRef {
        let raw = RawJson::of(&json!({"kind": "git", "repoUrl": url}));
        let WorkspaceRef::Git(wanted) = WorkspaceRef::read(&raw).unwrap() else { panic!("{url}") };
        wanted
    }

    fn through(url: &str, addresses: &[&str]) -> Route {
        let (wanted, port) = (wanted(url), 1);
        let addresses: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect();
        let server = wanted.server.clone().unwrap();
        Route::through(&wanted, &server, &addresses)
    }

    #[test]
    fn every_route_is_pinned_to_the_checked_addresses() {
        let web = through("https://git.example/a.git", &["8.8.8.8", "2606:4700::1"]);
        assert_eq!(web.setting.as_deref(), Some("http.curloptResolve=git.example:443:8.8.8.8,[2606:4700::1]"));
        let port = through("http://git.example:8080/a.git", &["8.8.8.8"]);
        assert_eq!(port.setting.as_deref(), Some("http.curloptResolve=git.example:8080:8.8.8.8"));
        let ssh = through("ssh://git@git.example:2222/a.git", &["8.8.8.8"]).ssh.unwrap();
        for option in
            ["-oHostName=8.8.8.8 ", "-oHostKeyAlias='[git.example]:2222'", "-oProxyCommand=none", "-oProxyJump=none"]
        {
            assert!(ssh.contains(option), "{ssh}");
        }
        let own = through("git://git.example/a.git", &["8.8.8.8"]);
        assert_eq!((own.url.as_str(), own.setting), ("git://8.8.8.8:9418/a.git", None));
        assert_eq!(through("https://8.8.8.8/a.git", &["8.8.8.8"]).setting, None, "an address is its own pin");
    }

    #[tokio::test]
    async fn a_server_that_is_not_public_has_no_route() {
        let none = OutgoingRules::default();
        for url in [
            "https://localhost/a",
            "http://127.0.0.1:1/a",
            "https://10.0.0.1/a",
            "https://[::1]/a",
            "https://[::ffff:127.0.0.1]/a",
            "https://169.254.169.254/latest",
            "ssh://git@localhost/a",
            "git://127.0.0.1/a",
        ] {
            assert!(Route::find(&none, &wanted(url)).await.is_err(), "{url}");
        }
        let loopback = OutgoingRules::default().with_loopback();
        assert!(Route::find(&loopback, &wanted("https://localhost/a")).await.unwrap().setting.is_some());
        assert_eq!(Route::find(&none, &wanted("file:///a")).await.unwrap().url, "file:///a");
    }
}
