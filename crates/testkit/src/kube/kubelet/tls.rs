//! A certificate for the kubelet's port. The API server does not verify it unless it is configured to.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Makes a key and a certificate that it signs itself, with the `openssl` of the machine.
pub(super) fn acceptor(directory: &Path) -> Result<TlsAcceptor, String> {
    fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let (key, certificate) = (directory.join("kubelet.key"), directory.join("kubelet.crt"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args(["-subj", "/CN=kubelet"]).arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let output = openssl.output().map_err(|error| format!("cannot start openssl: {error}"))?;
    if !output.status.success() {
        return Err(format!("openssl failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let refuse = |error: &dyn std::fmt::Display| format!("cannot use the kubelet's certificate: {error}");
    let certificate = CertificateDer::from_pem_file(certificate).map_err(|error| refuse(&error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse(&error))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    Ok(TlsAcceptor::from(Arc::new(config.map_err(|error| refuse(&error))?)))
}
