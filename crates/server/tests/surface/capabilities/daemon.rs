//! Proofs of the daemon's tags, one arm for each. A proof that is longer than a few lines is a function beside the tests of its
//! area, in `crates/server/tests/daemon`.

use super::daemon_files;
use crate::{
    daemon::{agents, asides, auth, details, mcp, proofs, stream, votes, workspace},
    harness::TestServer,
};

/// Whether the behaviour behind a tag is there. Behaviour that no toggle changes asserts by itself.
pub(crate) async fn is_there(server: &TestServer, tag: &str) -> bool {
    match tag {
        "workspace_file_read" => return daemon_files::reads(server).await,
        "workspace_file_bytes" => return daemon_files::reads_bytes(server).await,
        "workspace_file_write" => return daemon_files::writes(server).await,
        tag if agents::TAGS.contains(&tag) => return agents::is_there(server, tag).await,
        tag if workspace::proofs::TAGS.contains(&tag) => return workspace::proofs::is_there(server, tag).await,
        "auth_provider_install" => return auth::installs(server).await,
        "auth_device_flow" => return auth::has_device_flows(server).await,
        tag if mcp::TAGS.contains(&tag) => return mcp::is_there(server, tag).await,
        "session_events" | "slow_client_warning" | "typed_event_schema" => stream::proof(server).await,
        "writer_idle_timeout" => return stream::evicts_idle_writers(server).await,
        "session_create"
        | "session_scope_override"
        | "session_load"
        | "session_resume"
        | "unstable_session_resume"
        | "session_list"
        | "session_prompt"
        | "non_blocking_prompt"
        | "prompt_absolute_deadline"
        | "session_cancel"
        | "session_close"
        | "session_metadata"
        | "client_identity"
        | "client_heartbeat" => return proofs::sessions(server, tag).await,
        "session_set_model" | "session_context" | "session_stats" | "session_tasks" | "session_language" => {
            details::proof(server, tag).await;
        }
        "session_permission_vote" | "permission_vote" | "permission_mediation" => votes::proof(server, tag).await,
        "session_recap" | "session_btw" | "session_context_usage" => asides::proof(server, tag).await,
        "session_rewind" | "session_branch" | "session_shell_command" => return proofs::history(server, tag).await,
        other => panic!("{other} is a tag without a proof: give it one here"),
    }
    true
}
