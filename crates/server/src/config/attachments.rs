//! Where pictures in people's messages lie, and for how long.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Pictures in people's messages.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachmentsSection {
    /// Where they lie; `attachments` in the data directory when left out. Servers of one Postgres share them by it.
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// They lie in this bucket of S3 instead. Its region and credentials come from the usual `AWS_…` variables.
    pub s3_bucket: Option<String>,
    /// Where S3 is, if it is not Amazon's.
    pub s3_endpoint: Option<String>,
    /// What their URLs begin with, as browsers reach this server; its own address when left out.
    pub base_url: Option<String>,
    /// How long a URL is good.
    pub url_ttl_ms: i64,
    /// What one user may have of them.
    pub quota_bytes: i64,
    /// One that no message has used for this long is let go of.
    pub unused_ms: i64,
    /// Hosts whose `https` URLs messages may carry as they are.
    pub trusted_hosts: Vec<String>,
}

impl Default for AttachmentsSection {
    fn default() -> Self {
        Self {
            directory: None,
            s3_bucket: None,
            s3_endpoint: None,
            base_url: None,
            url_ttl_ms: 3_600_000,
            quota_bytes: 1024 * 1024 * 1024,
            unused_ms: 86_400_000,
            trusted_hosts: vec![],
        }
    }
}
