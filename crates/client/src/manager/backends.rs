//! Backends: the profiles that the server can run.

use ostler_protocol::{Failure, kernel::backends::BackendList};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn list_backends(&self) -> Result<BackendList, Failure> {
        self.get(Path::api(&["backends"])).await
    }
}
