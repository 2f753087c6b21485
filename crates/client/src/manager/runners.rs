//! Runners: who they are and where they live.

use ostler_protocol::{
    Failure,
    runners::{RegisterRunner, Runner},
};

use crate::{Client, path::Path};

impl Client {
    pub async fn register_runner(&self, runner: &RegisterRunner) -> Result<Runner, Failure> {
        self.post(Path::api(&["runners", "register"]), runner).await
    }
}
