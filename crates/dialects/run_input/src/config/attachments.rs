//! Where pictures of messages are stored, and for how long.

use std::path::PathBuf;

use ostler_protocol::Failure;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, MS_MAX, Section, check_range};

/// Pictures in people's messages.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AttachmentsSection {
    /// The directory of the pictures; by default `attachments` in the data directory. Servers that share a
    /// Postgres must share it.
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// Store the pictures in this S3 bucket instead. Region and credentials come from the usual `AWS_…`
    /// variables.
    pub s3_bucket: Option<String>,
    /// The S3 endpoint, if it is not Amazon's.
    pub s3_endpoint: Option<String>,
    /// The beginning of the pictures' URLs, as browsers reach this server; by default its own address.
    pub base_url: Option<String>,
    /// How long a signed URL is valid.
    pub url_ttl_ms: i64,
    /// Maximum total bytes of pictures of one user.
    pub quota_bytes: i64,
    /// A picture that no message has used for this long is deleted.
    pub unused_ms: i64,
    /// Hosts whose `https` URLs messages may contain unchanged.
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

impl Section for AttachmentsSection {
    const NAME: &'static str = "attachments";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let ms = |value: i64| u64::try_from(value).unwrap_or(0);
        let checks = [
            check_range("attachments.url_ttl_ms", ms(self.url_ttl_ms), 1_000..=MS_MAX),
            check_range("attachments.unused_ms", ms(self.unused_ms), 1_000..=365 * MS_MAX),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }
}
