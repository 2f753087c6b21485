-- Sessions that clients of the daemon have opened. The conversation itself is a session of the kernel.
CREATE TABLE daemon_sessions (
    session_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    workspace TEXT NOT NULL,
    scope TEXT NOT NULL,
    model_id TEXT,
    language TEXT,
    output_language TEXT,
    opened_at BIGINT NOT NULL,
    closed_at BIGINT
);
-- Clients without a scope of their own share one session per owner.
CREATE UNIQUE INDEX daemon_sessions_single ON daemon_sessions (tenant_id, owner, workspace)
    WHERE scope = 'single' AND closed_at IS NULL;
CREATE INDEX daemon_sessions_open ON daemon_sessions (workspace, session_id) WHERE closed_at IS NULL;
CREATE INDEX daemon_sessions_owner ON daemon_sessions (tenant_id, owner, workspace) WHERE closed_at IS NULL;
-- Lists of a workspace's sessions, open or closed.
CREATE INDEX daemon_sessions_workspace ON daemon_sessions (workspace, session_id);

-- Clients that are attached to a session, by the ids that the server made for them.
CREATE TABLE daemon_clients (
    client_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL
);
CREATE INDEX daemon_clients_session ON daemon_clients (session_id, last_seen_at);
