//! Health: whether the server is up, and whether it may be given work.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    health::{Health, Readiness},
};

use crate::{Client, answer, path::Path};

impl Client {
    pub async fn health(&self) -> Result<Health, Failure> {
        self.get(Path::fixed("/health")).await
    }

    /// The server's health and its own clock, to the second, from the answer's `Date`.
    pub async fn health_and_clock(&self) -> Result<(Health, Option<String>), Failure> {
        let request = self.request(Method::GET, Path::fixed("/health"), Bytes::new(), crate::JSON)?;
        let response = self.open(request).await?;
        let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let (status, bytes) = answer::collect(response).await?;
        Ok((answer::parse(&answer::good(status, bytes)?)?, date))
    }

    /// Also the answer of a server that is not ready, which has a bad status but says what is missing.
    pub async fn readiness(&self) -> Result<Readiness, Failure> {
        let (status, bytes) = self.exchange(Method::GET, Path::fixed("/health/readiness"), Bytes::new()).await?;
        serde_json::from_slice(&bytes).or_else(|_| answer::parse(&answer::good(status, bytes)?))
    }
}
