//! Usage: what runs have cost in a period.

use ostler_protocol::{
    Failure,
    kernel::usage::{UsageQuery, UsageReport},
};

use crate::{client::Client, path::Path};

impl Client {
    /// What runs have used in a period, by group.
    pub async fn usage(&self, query: &UsageQuery) -> Result<UsageReport, Failure> {
        self.get(Path::api(&["usage"]).query(query)?).await
    }
}
