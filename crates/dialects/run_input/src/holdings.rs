//! The tables and files of the run input dialect. Threads and their messages are sessions and events of the kernel.

use ostler_server::{
    config::Config,
    dialect::{
        Backup::Copied,
        ConfiguredPlace,
        Erasure::{WithOwner, WithSession},
        Holding,
        Retention::{Expires, Kept},
    },
};

use crate::config::attachments::AttachmentsSection;

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("attachments", Copied, Expires, WithSession),
    Holding::table("automations", Copied, Kept, WithOwner),
    // The newest of each automation are kept.
    Holding::table("automation_starts", Copied, Expires, WithOwner),
    Holding::table("calendar_events", Copied, Kept, WithOwner),
    Holding::path("attachments", Copied, Expires, WithSession).placed_by(attachments),
];

fn attachments(config: &Config) -> ConfiguredPlace {
    let section = config.section::<AttachmentsSection>();
    match (section.s3_bucket, section.directory) {
        (Some(bucket), _) => ConfiguredPlace::Elsewhere(format!("attachments (attachments.s3_bucket, {bucket})")),
        (None, Some(directory)) => ConfiguredPlace::At(directory),
        (None, None) => ConfiguredPlace::DataDir,
    }
}
