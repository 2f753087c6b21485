//! `ostler mesh whois`: looks a name up.

use ostler_client::mesh::CertificateTrust;
use ostler_protocol::{
    Failure,
    mesh::{
        auth::not_registered,
        messages::QueryOnlineResult,
        prekeys::{GetPrekeyParams, GetPrekeyResult},
    },
};
use serde_json::{Value, json};

use super::identity_file::{IdentityArgs, single_use_slot};
use crate::{
    connection::Connection,
    exit_codes,
    terminal::output::{self, Output, line},
};

/// Show the certificate of a name, whether it is trusted, and whether the name is connected
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh whois bobby.localhost.test -o json")]
pub(crate) struct WhoisArgs {
    /// The name to look up; without a dot, a name of the same domain
    name: String,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn whois(connection: &Connection, args: &WhoisArgs) -> Result<u8, Failure> {
    let mut identity = args.identity.find(connection)?;
    let (aid, gateway) = (identity.full_name(&args.name)?, identity.gateway()?);
    let (certificate, doubt) = match gateway.check_certificate(&aid, None).await? {
        CertificateTrust::Trusted(peer) => (peer.certificate().clone(), None),
        CertificateTrust::Untrusted { certificate, why } => (*certificate, Some(why)),
        CertificateTrust::Unknown => return Err(not_registered(&aid)),
    };
    let mut sealer = identity.enter(&gateway, &single_use_slot()).await?;
    let online: QueryOnlineResult = sealer.session().call("message.query_online", &json!({"aids": [aid]})).await?;
    let params = GetPrekeyParams { aid: aid.clone() };
    let prekeys: GetPrekeyResult = sealer.session().call("message.e2ee.get_prekey", &params).await?;
    sealer.close().await;
    let is_online = online.online.get(aid.as_str()).copied().unwrap_or(false);
    let value = json!({"aid": aid, "believed": doubt.is_none(), "doubt": doubt,
        "fingerprint": certificate.fingerprint(), "serial": certificate.serial().to_string(),
        "notAfter": certificate.not_after(), "online": is_online, "devices": prekeys.device_prekeys.len()});
    args.output.one(&value, || render(&value, output::width()));
    Ok(exit_codes::OK)
}

/// Wrapped at the margin of the terminal.
fn render(found: &Value, width: Option<usize>) -> String {
    let text = |name: &str| found[name].as_str().map(|text| line(text, 400)).unwrap_or_default();
    let trust = match found["doubt"].as_str() {
        None => "trusted".to_owned(),
        Some(_) => format!("not trusted: {}", text("doubt")),
    };
    let connected = if found["online"] == true { "connected" } else { "not connected" };
    let devices = output::count(found["devices"].as_i64().unwrap_or_default(), "device");
    let (aid, fingerprint, until) = (text("aid"), text("fingerprint"), text("notAfter"));
    let lines = format!("{aid}\n{trust}\ncertificate {fingerprint}, until {until}\n{connected}, {devices}\n");
    output::folded(&lines, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_shown_within_the_terminal() {
        let found = json!({"aid": "bobby.localhost.test", "believed": true, "doubt": null,
            "fingerprint": format!("sha256:{}", "ab".repeat(32)), "serial": "1", "notAfter": "2030-01-01T00:00:00Z",
            "online": true, "devices": 2});
        let text = render(&found, None);
        assert!(text.starts_with("bobby.localhost.test\ntrusted\ncertificate sha256:abab"), "{text}");
        assert!(text.ends_with(", until 2030-01-01T00:00:00Z\nconnected, 2 devices\n"), "{text}");
        let narrow = render(&found, Some(80));
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    }
}
