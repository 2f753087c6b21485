//! Arbitrary calls with the caller's token: for `ostler api`, and for operations without a method here.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response};
use ostler_protocol::{Failure, Rule};

use crate::{client::Client, path::Path, transport::ReplyBody};

impl Client {
    /// Makes a call and returns the response as it is, successful or not. `path` begins with a slash and is sent unchanged.
    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: Bytes,
    ) -> Result<Response<ReplyBody>, Failure> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Failure::invalid(Rule::Method, format!("{method:?} is not an HTTP method")))?;
        let mut request = self.request(method, Path::raw(path)?, body, HeaderValue::from_static("*/*"))?;
        for (name, value) in headers {
            request.headers_mut().insert(name, value.clone());
        }
        self.open(request).await
    }
}
