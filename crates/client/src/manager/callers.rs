//! Callers: who the server takes this client for.

use ostler_protocol::{Failure, callers::CallerView};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn caller(&self) -> Result<CallerView, Failure> {
        self.get(Path::api(&["caller"])).await
    }
}
