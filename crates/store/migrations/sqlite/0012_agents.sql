-- How much the agent of a session does without asking. Null: it asks.
ALTER TABLE daemon_sessions ADD COLUMN approval_mode TEXT;
-- What new sessions of a workspace start with.
CREATE TABLE daemon_workspaces (
    tenant_id TEXT NOT NULL,
    workspace TEXT NOT NULL,
    approval_mode TEXT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, workspace)
);
