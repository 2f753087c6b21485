//! Calls of a Kubernetes API server: HTTP/1.1 over TLS, one call after the other over a kept connection. A client library would add
//! its own time to the bare call that the server is compared with.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use memchr::memmem;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::outcome::Outcome;

const SCHEME: &str = "https://";
const PORT_DEFAULT: &str = "443";
const BODY_BYTES_SHOWN_MAX: usize = 400;
/// A cluster of several users may limit the rate of calls.
const TOO_MANY_REQUESTS: u16 = 429;
const RATE_PAUSE: Duration = Duration::from_secs(1);
const RATE_ATTEMPTS_MAX: u32 = 60;
const NOT_FOUND: u16 = 404;

/// Where an API server is, and how to authenticate.
pub(crate) struct ApiServer {
    /// Host and port.
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
    /// `None` if the client has a certificate.
    token: Option<String>,
}

impl ApiServer {
    /// Reads a kubeconfig in JSON with one cluster and one user, and everything that they need in the file itself.
    pub(crate) fn read(kubeconfig: &Path) -> Outcome<Self> {
        let config: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig)?)?;
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let (address, host) = address_of(cluster["server"].as_str().ok_or("the kubeconfig names no server")?)?;
        let token = user["token"].as_str().map(str::to_owned);
        let certificate = decoded(user, "client-certificate-data")?.zip(decoded(user, "client-key-data")?);
        if token.is_none() && certificate.is_none() {
            return Err("the kubeconfig has neither a token nor a client certificate".into());
        }
        let authority = decoded(cluster, "certificate-authority-data")?;
        let authority = authority.ok_or("the kubeconfig has no certificate authority")?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(&authority) {
            roots.add(root?)?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = match certificate {
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<Vec<_>, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?
            }
            None => builder.with_no_client_auth(),
        };
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { address, name: ServerName::try_from(host)?, connector, token })
    }

    pub(crate) async fn connect(&self) -> Outcome<ApiConnection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        let mut head = format!("host: {}\r\naccept: application/json\r\n", self.address);
        if let Some(token) = &self.token {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        Ok(ApiConnection { stream, head, buffer: Vec::with_capacity(64 * 1024) })
    }
}

/// The address to connect to, and the host in its certificate.
fn address_of(url: &str) -> Outcome<(String, String)> {
    let rest = url.strip_prefix(SCHEME).ok_or_else(|| format!("{url} does not begin with {SCHEME}"))?;
    let address = rest.trim_end_matches('/');
    if address.contains('/') {
        return Err(format!("{url} has a path, which is not supported").into());
    }
    let (host, port) = match address.rsplit_once(':') {
        // Colons in brackets are part of the host.
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (address, PORT_DEFAULT),
    };
    Ok((format!("{host}:{port}"), host.trim_matches(['[', ']']).to_owned()))
}

fn decoded(section: &Value, field: &str) -> Outcome<Option<Vec<u8>>> {
    Ok(section[field].as_str().map(|text| BASE64.decode(text)).transpose()?)
}

pub(crate) struct ApiConnection {
    stream: TlsStream<TcpStream>,
    /// Headers of each request.
    head: String,
    buffer: Vec<u8>,
}

impl ApiConnection {
    /// The bytes of a request. A patch is a strategic merge patch.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let kind = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let mut text = format!("{method} {path} HTTP/1.1\r\n{}", self.head);
        if !body.is_empty() {
            text += &format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len());
        }
        text += "\r\n";
        text += body;
        text.into_bytes()
    }

    /// Makes a call and returns the object in its response. A status of failure is an error.
    pub(crate) async fn call(&mut self, method: &str, path: &str, body: &str) -> Outcome<Value> {
        let request = self.request(method, path, body);
        let (status, body) = self.exchange(&request).await?;
        Ok(serde_json::from_slice(&successful(status, body, &request)?)?)
    }

    /// `None` if there is no such object.
    pub(crate) async fn get(&mut self, path: &str) -> Outcome<Option<Value>> {
        let request = self.request("GET", path, "");
        match self.exchange(&request).await? {
            (NOT_FOUND, _) => Ok(None),
            (status, body) => Ok(Some(serde_json::from_slice(&successful(status, body, &request)?)?)),
        }
    }

    pub(crate) async fn exists(&mut self, path: &str) -> Outcome<bool> {
        Ok(self.get(path).await?.is_some())
    }

    /// Sends the bytes of a request, and returns the body of the response. A status of failure is an error, also a rejection because of
    /// too many calls: this call is timed, and must not contain a pause.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Outcome<Vec<u8>> {
        let (status, body) = self.exchange_once(request).await?;
        successful(status, body, request)
    }

    /// As [`exists`](Self::exists), for calls that are timed.
    pub(crate) async fn exists_timed(&mut self, path: &str) -> Outcome<bool> {
        let request = self.request("GET", path, "");
        match self.exchange_once(&request).await? {
            (NOT_FOUND, _) => Ok(false),
            (status, body) => successful(status, body, &request).map(|_| true),
        }
    }

    /// Status and body. A call that was rejected because of too many is repeated.
    async fn exchange(&mut self, request: &[u8]) -> Outcome<(u16, Vec<u8>)> {
        for _ in 0..RATE_ATTEMPTS_MAX {
            match self.exchange_once(request).await? {
                (TOO_MANY_REQUESTS, _) => sleep(RATE_PAUSE).await,
                response => return Ok(response),
            }
        }
        Err("the API server rejects too many calls".into())
    }

    async fn exchange_once(&mut self, request: &[u8]) -> Outcome<(u16, Vec<u8>)> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        self.read_response().await
    }

    async fn read_response(&mut self) -> Outcome<(u16, Vec<u8>)> {
        self.buffer.clear();
        let head_end = self.read_line_end(0, b"\r\n\r\n").await?;
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).to_ascii_lowercase();
        // `http/1.1 200 ok`
        let status = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or("a response without a status")?;
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let start = head_end + 4;
        if let Some(length) = header("content-length:") {
            let end = start + length.parse::<usize>()?;
            self.read_to(end).await?;
            return Ok((status, self.buffer[start..end].to_vec()));
        }
        match header("transfer-encoding:") {
            Some("chunked") => Ok((status, self.read_chunks(start).await?)),
            _ => Err("a response without a length".into()),
        }
    }

    async fn read_chunks(&mut self, start: usize) -> Outcome<Vec<u8>> {
        let (mut at, mut body) = (start, vec![]);
        loop {
            let line_end = self.read_line_end(at, b"\r\n").await?;
            let size = std::str::from_utf8(&self.buffer[at..line_end])?.trim();
            let size = usize::from_str_radix(size, 16)?;
            let chunk = line_end + 2;
            self.read_to(chunk + size + 2).await?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&self.buffer[chunk..chunk + size]);
            at = chunk + size + 2;
        }
    }

    /// Reads until the mark has come, and returns where it begins.
    async fn read_line_end(&mut self, from: usize, mark: &[u8]) -> Outcome<usize> {
        loop {
            if let Some(found) = self.buffer.get(from..).and_then(|rest| memmem::find(rest, mark)) {
                return Ok(from + found);
            }
            self.read_more().await?;
        }
    }

    async fn read_to(&mut self, end: usize) -> Outcome<()> {
        while self.buffer.len() < end {
            self.read_more().await?;
        }
        Ok(())
    }

    async fn read_more(&mut self) -> Outcome<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err("the API server closed the connection".into()),
            _ => Ok(()),
        }
    }
}

fn successful(status: u16, body: Vec<u8>, request: &[u8]) -> Outcome<Vec<u8>> {
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let text = String::from_utf8_lossy(&body[..body.len().min(BODY_BYTES_SHOWN_MAX)]);
    Err(format!("{}: {status}: {text}", String::from_utf8_lossy(line)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_and_a_host_for_the_certificate() {
        let of = |url: &str| address_of(url).unwrap();
        assert_eq!(of("https://127.0.0.1:6443"), ("127.0.0.1:6443".into(), "127.0.0.1".into()));
        assert_eq!(of("https://kube.example/"), ("kube.example:443".into(), "kube.example".into()));
        assert_eq!(of("https://[::1]:6443"), ("[::1]:6443".into(), "::1".into()));
        assert_eq!(of("https://[::1]"), ("[::1]:443".into(), "::1".into()));
        assert!(address_of("http://127.0.0.1:6443").is_err() && address_of("https://a/b").is_err());
    }
}
