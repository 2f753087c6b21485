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
use serde_json::json;

use super::identity_file::{IdentityArgs, single_use_slot};
use crate::{
    connection::Connection,
    exit_codes,
    terminal::output::{self, Output},
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
    args.output.one(&value, || {
        let trust = doubt.map_or_else(|| "trusted".to_owned(), |why| format!("not trusted: {why}"));
        format!(
            "{aid}\n{trust}\ncertificate {}, until {}\n{}, {}\n",
            certificate.fingerprint(),
            certificate.not_after(),
            if is_online { "connected" } else { "not connected" },
            output::count(prekeys.device_prekeys.len() as i64, "device")
        )
    });
    Ok(exit_codes::OK)
}
