//! Capabilities: what the server can be relied on for, to be read before anything else.

use ostler_protocol::{Failure, capabilities::SeenCapabilities};

use crate::{Client, path::Path};

impl Client {
    /// Read leniently: whoever answers may be of another version, or another program.
    pub async fn capabilities(&self) -> Result<SeenCapabilities, Failure> {
        self.get(Path::fixed("/capabilities")).await
    }
}
