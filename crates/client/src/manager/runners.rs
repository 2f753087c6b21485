//! Runners: their registration.

use ostler_protocol::{
    Failure,
    kernel::runners::{RegisterRunner, Runner},
};

use crate::{client::Client, path::Path};

impl Client {
    pub async fn register_runner(&self, runner: &RegisterRunner) -> Result<Runner, Failure> {
        self.post(Path::api(&["runners", "register"]), runner).await
    }
}
