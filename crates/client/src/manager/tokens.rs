//! Service tokens: create, list, revoke. For operators.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    tokens::{CreateToken, CreatedToken, ListTokens, ServiceToken, TokenPage},
};

use crate::{client::Client, path::Path, response};

impl Client {
    /// The response contains the token, which is not displayed again.
    pub async fn create_token(&self, token: &CreateToken) -> Result<CreatedToken, Failure> {
        self.post(Path::api(&["tokens"]), token).await
    }

    pub async fn list_tokens(&self, query: &ListTokens) -> Result<TokenPage, Failure> {
        self.get(Path::api(&["tokens"]).query(query)?).await
    }

    /// Idempotent: the first revocation counts.
    pub async fn revoke_token(&self, token_id: &str) -> Result<ServiceToken, Failure> {
        response::parse(&self.call(Method::DELETE, Path::api(&["tokens", token_id]), Bytes::new()).await?)
    }
}
