//! The tables and files of the run input dialect. Threads and their messages are sessions and events of the kernel.

use ostler_server::dialect::{Backup::Copied, Erasure::WithSession, Holding, Retention::Expires};

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("attachments", Copied, Expires, WithSession),
    Holding::path("attachments", Copied, Expires, WithSession),
];
