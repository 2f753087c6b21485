//! Tags of the files of the workspace.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const FILES: &[Capability] = &[
    capability(
        "workspace_file_read",
        &["GET /file", "GET /list", "GET /glob", "GET /stat"],
        "Reads text files of the workspace, lists its directories and finds paths by a pattern.",
    )
    .when(&[toggles::WORKSPACE]),
    capability("workspace_file_bytes", &["GET /file/bytes"], "Reads bytes of any file of the workspace.")
        .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_file_write",
        &["POST /file/write", "POST /file/edit"],
        "Creates, replaces and edits text files of the workspace, if they are as the client last read them.",
    )
    .when(&[toggles::WORKSPACE]),
];
