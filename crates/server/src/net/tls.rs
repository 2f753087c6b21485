//! The listener's TLS, if configured: one certificate chain, and its key.

use std::{path::Path, sync::Arc};

use ostler_protocol::{Failure, Rule};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::{config::Config, startup::not_started};

/// The acceptor, and the listener's own certificate in DER. `None` for plain HTTP.
pub fn acceptor(config: &Config) -> Result<Option<(TlsAcceptor, Vec<u8>)>, Failure> {
    let Some((cert, key)) = config.tls_files()? else { return Ok(None) };
    let unusable =
        |file: &Path, why: &dyn std::fmt::Display| not_started(Rule::Tls, format!("{}: {why}", file.display()));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect);
    let chain = chain.map_err(|why| unusable(cert, &why))?;
    let own = chain.first().map(|certificate| certificate.to_vec()).unwrap_or_default();
    let private = PrivateKeyDer::from_pem_file(key).map_err(|why| unusable(key, &why))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|why| unusable(cert, &why))?.with_no_client_auth();
    let mut tls = builder.with_single_cert(chain, private).map_err(|why| unusable(cert, &why))?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some((TlsAcceptor::from(Arc::new(tls)), own)))
}
