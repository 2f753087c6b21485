//! What a launcher passes to a runner process: one line on its standard input. Arguments and environment are visible to
//! other processes or inherited by the backend; a pipe is neither. The launcher keeps the pipe open for as long as it
//! lives.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::runner::RunnerOrder;

/// A longer line is rejected.
pub const LAUNCH_BYTES_MAX: u64 = 64 * 1024;
/// Largest certificate of a listener, in bytes of DER. In base64 it leaves most of [`LAUNCH_BYTES_MAX`] to the order.
pub const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Launch {
    pub order: RunnerOrder,
    /// The server's base URL.
    pub server: String,
    #[serde(serialize_with = "expose_token")]
    pub token: SecretString,
    /// The certificate of the server's listener, in DER. `None` without TLS. The runner trusts no other one. In base64 on
    /// the line.
    #[serde(default, serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub certificate: Option<Vec<u8>>,
    /// Continue when the pipe closes, because the server may stop and come back.
    pub outlive_server: bool,
}

/// The token is serialised in clear: the reader of the pipe is the runner that it is for.
fn expose_token<S: Serializer>(token: &SecretString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(token.expose_secret())
}

fn to_base64<S: Serializer>(certificate: &Option<Vec<u8>>, out: S) -> Result<S::Ok, S::Error> {
    certificate.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(out)
}

fn from_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| STANDARD.decode(text)).transpose().map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{ids::RunId, kernel::provider_profiles::AgentConfig};

    use super::*;
    use crate::environment::BackendEnvironment;

    fn launch(certificate: Option<Vec<u8>>) -> Launch {
        let run_id: RunId = format!("run_{:032x}", 1).parse().unwrap();
        let environment = BackendEnvironment::bare(AgentConfig::Codex);
        let order = RunnerOrder::host_process(run_id, "r".into(), "codex".into(), environment);
        let (server, token) = ("https://127.0.0.1:1".to_owned(), SecretString::from("t".to_owned()));
        Launch { order, server, token, certificate, outlive_server: false }
    }

    #[test]
    fn the_largest_certificate_fits_into_half_of_the_line() {
        let certificate = vec![0xff; CERTIFICATE_BYTES_MAX];
        let line = serde_json::to_string(&launch(Some(certificate.clone()))).unwrap();
        assert!(line.len() as u64 <= LAUNCH_BYTES_MAX / 2, "{}", line.len());
        let read: Launch = serde_json::from_str(&line).unwrap();
        assert_eq!(read.certificate, Some(certificate));
    }

    #[test]
    fn a_line_without_a_certificate_is_read() {
        let mut line = serde_json::to_value(launch(None)).unwrap();
        assert_eq!(serde_json::from_value::<Launch>(line.clone()).unwrap().certificate, None);
        line.as_object_mut().unwrap().remove("certificate");
        assert_eq!(serde_json::from_value::<Launch>(line.clone()).unwrap().certificate, None);
        line["certificate"] = "not base64!".into();
        assert!(serde_json::from_value::<Launch>(line).is_err());
    }
}
