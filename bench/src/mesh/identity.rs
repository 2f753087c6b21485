//! An identity of the mesh: its key, and the four connections by which it registers, logs in and stays.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv4Addr;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use p256::ecdsa::{DerSignature, SigningKey, signature::Signer};
use p256::pkcs8::EncodePublicKey;

use crate::http::field;
use crate::outcome::Outcome;
use crate::server::Server;
use crate::websocket::WebSocket;

const CLIENT_TIME: &str = "1794700691.7287993";

/// Registers a name, logs in and connects, as the published client does: each call but the last on a connection of its own.
pub(crate) async fn enter(server: &Server, name: &str) -> Outcome<WebSocket> {
    let (aid, from) = (format!("{name}.localhost.test"), address(name));
    let key = key(name)?;
    let public_key = BASE64.encode(key.verifying_key().to_public_key_der()?.as_bytes());
    let params = format!(r#"{{"aid":"{aid}","public_key":"{public_key}","curve":"P-256"}}"#);
    let created = call(server, from, "auth.create_aid", &params).await?;
    // With the escapes of the response, so that it can be sent again without being parsed.
    let cert = field(&created, "cert")?;
    let params = format!(r#"{{"aid":"{aid}","cert":"{cert}","client_nonce":"MDEyMzQ1Njc4OWFi"}}"#);
    let begun = call(server, from, "auth.aid_login1", &params).await?;
    let (request_id, nonce) = (field(&begun, "request_id")?, field(&begun, "nonce")?);
    let signature: DerSignature = key.sign(format!("{nonce}:{CLIENT_TIME}").as_bytes());
    let params = format!(
        r#"{{"aid":"{aid}","request_id":"{request_id}","nonce":"{nonce}","client_time":"{CLIENT_TIME}","signature":"{}"}}"#,
        BASE64.encode(signature.as_bytes())
    );
    let login = call(server, from, "auth.aid_login2", &params).await?;
    let token = field(&login, "access_token")?;
    let mut socket = WebSocket::open_from(server, "/aun", from).await?;
    let nonce = field(socket.receive().await?, "nonce")?.to_owned();
    let params = format!(
        r#"{{"nonce":"{nonce}","auth":{{"method":"kite_token","token":"{token}"}},"device":{{"id":"{name}","type":"sdk"}}}}"#
    );
    ask(&mut socket, "auth.connect", &params).await?;
    Ok(socket)
}

/// Keys are made from names: what is measured is the server's part.
fn key(name: &str) -> Outcome<SigningKey> {
    let mut scalar = [1; 32];
    scalar[..8].copy_from_slice(&number(name).to_be_bytes());
    // Below the curve's order, whatever the name.
    scalar[0] = 0;
    Ok(SigningKey::from_slice(&scalar)?)
}

/// Identities connect from many addresses, because servers limit the calls of each address.
fn address(name: &str) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 0, 1 + (number(name) % 200) as u8)
}

fn number(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

async fn call(server: &Server, from: Ipv4Addr, method: &str, params: &str) -> Outcome<Vec<u8>> {
    let mut socket = WebSocket::open_from(server, "/aun", from).await?;
    socket.until(b"challenge").await?;
    ask(&mut socket, method, params).await
}

async fn ask(socket: &mut WebSocket, method: &str, params: &str) -> Outcome<Vec<u8>> {
    socket
        .send_text(&format!(r#"{{"jsonrpc":"2.0","id":"pre-{method}","method":"{method}","params":{params}}}"#))
        .await?;
    let answer = socket.receive().await?;
    match memchr::memmem::find(answer, br#""result":"#) {
        Some(_) => Ok(answer.to_vec()),
        None => Err(format!("{method}: {}", String::from_utf8_lossy(answer)).into()),
    }
}
