//! Health: whether the server is up, and whether it accepts work.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    health::{Health, Readiness},
};

use crate::{
    client::{Client, JSON},
    path::Path,
    response,
};

impl Client {
    pub async fn health(&self) -> Result<Health, Failure> {
        self.get(Path::fixed("/health")).await
    }

    /// The server's health and its clock, to the second, from the response's `Date`.
    pub async fn health_and_clock(&self) -> Result<(Health, Option<String>), Failure> {
        let request = self.request(Method::GET, Path::fixed("/health"), Bytes::new(), JSON)?;
        let response = self.open(request).await?;
        let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let (status, bytes) = response::collect(response).await?;
        Ok((response::parse(&response::success(status, bytes)?)?, date))
    }

    /// The readiness of the server. A server that is not ready responds with an error status and names what is missing.
    pub async fn readiness(&self) -> Result<Readiness, Failure> {
        let (status, bytes) = self.exchange(Method::GET, Path::fixed("/health/readiness"), Bytes::new()).await?;
        serde_json::from_slice(&bytes).or_else(|_| response::parse(&response::success(status, bytes)?))
    }
}
