//! Capabilities: what the server supports. Clients read them before anything else.

use ostler_protocol::{Failure, capabilities::SeenCapabilities};

use crate::{client::Client, path::Path};

impl Client {
    /// Read leniently: the server may be of another version, or another program.
    pub async fn capabilities(&self) -> Result<SeenCapabilities, Failure> {
        self.get(Path::fixed("/capabilities")).await
    }
}
