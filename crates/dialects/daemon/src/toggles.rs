//! The switches of the operator that this dialect's capabilities depend on.

use ostler_protocol::capabilities::Toggle;

/// Prompts have a deadline.
pub const PROMPT_DEADLINE: Toggle = Toggle::new("prompt deadline", "--prompt-deadline-ms");
/// Event streams to which nothing can be written are closed.
pub const WRITER_IDLE: Toggle = Toggle::new("writer idle", "--writer-idle-timeout-ms");
/// The server is bound to a directory.
pub const WORKSPACE: Toggle = Toggle::new("workspace", "--workspace");
/// Clients may change settings of the workspace, so there is a workspace.
pub const SETTINGS: Toggle = Toggle::new("settings", "daemon.settings");
/// Clients may reload the settings of the workspace, so there is a workspace.
pub const RELOAD: Toggle = Toggle::new("reload", "daemon.reload");
/// The backend of the daemon's profile answers requests about its workspace beside turns.
pub const AGENT: Toggle = Toggle::new("agent", "daemon.profile");
/// The model of the daemon's profile answers questions beside turns.
pub const SIDE_QUERIES: Toggle = Toggle::new("side queries", "daemon.profile");
/// Clients may run shell commands in the workspace, so there is a workspace.
pub const SESSION_SHELL: Toggle = Toggle::new("session shell", "--enable-session-shell");
