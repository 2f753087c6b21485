//! The environment of the server, for a client that wants to know why something behaves differently there. Variables are reported
//! by their presence only, because their values may be secrets.

use ostler_protocol::{
    Failure,
    daemon::{
        cells::{
            EnvironmentCell,
            EnvironmentKind::{EnvVar, Platform, Proxy, Runtime, Sandbox},
        },
        workspace::{EnvironmentStatus, SNAPSHOT_VERSION},
    },
    json::value_of,
    redaction::Redactor,
};
use ostler_server::{app::App, auth::Principal, config::Environment};

use super::{companion, workspace};

/// Variables with the address of a proxy.
const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Variables whose presence explains what agents and their tools do.
const VARIABLES: [&str; 14] = [
    "ANTHROPIC_API_KEY",
    "DASHSCOPE_API_KEY",
    "DATABASE_URL",
    "DEEPSEEK_API_KEY",
    "GEMINI_API_KEY",
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "GOOGLE_API_KEY",
    "HOME",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OSTLER_TOKEN",
    "PATH",
    "SSH_AUTH_SOCK",
];
/// Most characters of a host name with its port.
const ADDRESS_CHARS_MAX: usize = 262;

pub(crate) async fn get(app: &App, caller: &Principal) -> Result<EnvironmentStatus, Failure> {
    workspace::check_read(app, caller)?;
    let mut cells = vec![
        EnvironmentCell::fact(Runtime, "ostler", env!("CARGO_PKG_VERSION")),
        EnvironmentCell::fact(Platform, "os", std::env::consts::OS),
        EnvironmentCell::fact(Platform, "arch", std::env::consts::ARCH),
    ];
    cells.extend(sandbox(app));
    cells.extend(variables(&app.config.environment, &app.redactor));
    Ok(EnvironmentStatus {
        v: SNAPSHOT_VERSION,
        workspace_cwd: workspace::cwd(app)?,
        initialized: true,
        acp_channel_live: companion::running_of_workspace(app).await?.is_some(),
        cells,
    })
}

/// What confines agents here.
fn sandbox(app: &App) -> [EnvironmentCell; 3] {
    let namespaces = app.isolation.get().map(value_of);
    let namespaces = namespaces.as_ref().and_then(|name| name.as_str()).unwrap_or("unknown");
    [
        EnvironmentCell::presence(Sandbox, "guard", app.config.runner.guard.is_some()),
        EnvironmentCell::presence(Sandbox, "landlock", app.config.confinement.landlock),
        EnvironmentCell::fact(Sandbox, "namespaces", namespaces),
    ]
}

fn variables(environment: &Environment, redactor: &Redactor) -> Vec<EnvironmentCell> {
    // The upper-case name is the one that is shown; programs read both.
    let either = |name: &str| environment.text(name).or_else(|| environment.text(&name.to_lowercase()));
    let proxy = |name: &&str| {
        let setting = either(name);
        let shown = setting.as_deref().and_then(address);
        let is_public = |address: &String| redactor.redact(address) == address.as_str();
        EnvironmentCell { value: shown.filter(is_public), ..EnvironmentCell::presence(Proxy, name, setting.is_some()) }
    };
    let mut cells: Vec<_> = PROXIES.iter().map(proxy).collect();
    cells.push(EnvironmentCell::presence(Proxy, "NO_PROXY", either("NO_PROXY").is_some()));
    let presence = |name: &&str| EnvironmentCell::presence(EnvVar, name, environment.get(name).is_some());
    cells.extend(VARIABLES.iter().map(presence));
    cells
}

/// The host and port of a URL. `None` if they cannot be separated from the rest for certain.
fn address(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    // First the credentials: a password may contain what otherwise ends an address.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let address = rest.split(['/', '?', '#']).next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    let is_address = !address.is_empty() && address.len() <= ADDRESS_CHARS_MAX && address.chars().all(is_plain);
    // Without a scheme and a port, it may be anything.
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    (is_address && (has_port || url.contains("://"))).then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_reduced_to_its_host_and_port() {
        for (url, expected) in [
            ("http://proxy.example:3128", Some("proxy.example:3128")),
            ("https://ada:pl4nted@proxy.example:3128/path?token=pl4nted", Some("proxy.example:3128")),
            ("http://ada:pl4nted/#x@proxy.example", Some("proxy.example")),
            ("socks5://[::1]:1080", Some("[::1]:1080")),
            ("proxy.example:3128", Some("proxy.example:3128")),
            ("pl4nted", None),
            ("ada:pl4nted", None),
            ("http://", None),
            ("http://a b", None),
        ] {
            assert_eq!(address(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn no_value_of_a_variable_is_shown() {
        let taken = [
            ("OPENAI_API_KEY", "pl4nted-1"),
            ("HTTPS_PROXY", "http://me:pl4nted-2@proxy.example:3128"),
            ("ALL_PROXY", "http://pl4nted-3.example:1"),
            ("NO_PROXY", "pl4nted-4.example"),
        ];
        let environment = Environment::with_taken(taken.map(|(name, value)| (name.into(), value.into())));
        let cells = variables(&environment, &Redactor::new(&["pl4nted-3"]));
        let text = ostler_protocol::json::text_of(&cells);
        assert!(!text.contains("pl4nted"), "{text}");
        let find = |name: &str| cells.iter().find(|cell| cell.name == name).unwrap();
        assert_eq!((find("OPENAI_API_KEY").present, &find("OPENAI_API_KEY").value), (Some(true), &None));
        assert_eq!(find("HTTPS_PROXY").value.as_deref(), Some("proxy.example:3128"));
        assert_eq!((find("ALL_PROXY").present, &find("ALL_PROXY").value), (Some(true), &None), "a known secret");
        assert_eq!((find("NO_PROXY").present, &find("NO_PROXY").value), (Some(true), &None));
    }
}
