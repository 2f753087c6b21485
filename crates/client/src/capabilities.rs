//! Capabilities: what the server can be relied on for, to be read before anything else.

use ostler_protocol::{Failure, capabilities::Capabilities};

use crate::{Client, path::Path};

impl Client {
    pub async fn capabilities(&self) -> Result<Capabilities, Failure> {
        self.get(Path::fixed("/capabilities")).await
    }
}
