//! Attachments: images by their signed URLs.

use bytes::Bytes;
use ostler_protocol::Failure;

use crate::{client::Client, response};

/// The path of an attachment's URL.
const ROUTE: &str = "/api/v1/agent/attachments/object/";

impl Client {
    /// Loads the image of a URL of this server, whichever host name the URL uses. `None` if it is a URL of another server.
    pub async fn attachment(&self, url: &str) -> Result<Option<Bytes>, Failure> {
        let Some(at) = url.find(ROUTE) else { return Ok(None) };
        let response = self.raw("GET", &url[at..], &[], Bytes::new()).await?;
        let (status, bytes) = response::collect(response).await?;
        response::success(status, bytes).map(Some)
    }
}
