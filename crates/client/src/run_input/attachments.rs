//! Attachments: pictures by their signed URLs.

use bytes::Bytes;
use ostler_protocol::Failure;

use crate::{Client, answer};

/// Where a URL of an attachment leads, without its server.
const ROUTE: &str = "/api/v1/agent/attachments/object/";

impl Client {
    /// The picture behind a URL of this server's, whatever name the server goes by there. `None`: it is another's URL.
    pub async fn attachment(&self, url: &str) -> Result<Option<Bytes>, Failure> {
        let Some(at) = url.find(ROUTE) else { return Ok(None) };
        let answer = self.raw("GET", &url[at..], &[], Bytes::new()).await?;
        let (status, bytes) = answer::collect(answer).await?;
        answer::good(status, bytes).map(Some)
    }
}
