//! The listener's TLS, if configured: one certificate chain, and its key.

use std::{path::Path, sync::Arc};

use ostler_protocol::{Failure, Rule};
use ostler_runner::CERTIFICATE_BYTES_MAX;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::{config::Config, startup::not_started};

/// The acceptor, and the listener's own certificate in DER. `None` for plain HTTP.
pub fn acceptor(config: &Config) -> Result<Option<(TlsAcceptor, Vec<u8>)>, Failure> {
    let Some((cert, key)) = config.tls_files()? else { return Ok(None) };
    let chain = read_chain(cert)?;
    let own = chain.first().map(|certificate| certificate.to_vec()).unwrap_or_default();
    let private = PrivateKeyDer::from_pem_file(key).map_err(|why| unusable(key, &why))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| unusable(cert, &why))?.with_no_client_auth();
    let mut tls = builder.with_single_cert(chain, private).map_err(|why| unusable(cert, &why))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some((TlsAcceptor::from(Arc::new(tls)), own)))
}

/// The certificates of the file. Runner processes receive the first one with their order, which is why its size is limited.
fn read_chain(cert: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(|why| unusable(cert, &why))?;
    match chain.first().map_or(0, |own| own.len()) {
        bytes if bytes > CERTIFICATE_BYTES_MAX => {
            let why = format!("the certificate has {bytes} bytes, and at most {CERTIFICATE_BYTES_MAX} are supported");
            Err(unusable(cert, &why))
        }
        _ => Ok(chain),
    }
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> Failure {
    not_started(Rule::Tls, format!("{}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;

    #[test]
    fn a_certificate_that_runners_could_not_receive_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.pem");
        let read = |bytes: usize| {
            let text = STANDARD.encode(vec![7; bytes]);
            std::fs::write(&file, format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")).unwrap();
            read_chain(&file)
        };
        assert_eq!(read(CERTIFICATE_BYTES_MAX).unwrap().len(), 1);
        let failure = read(CERTIFICATE_BYTES_MAX + 1).unwrap_err();
        assert!(failure.message.contains("server.pem") && failure.message.contains("16385 bytes"), "{failure}");
    }
}
