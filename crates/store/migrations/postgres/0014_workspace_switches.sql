-- Tools and MCP servers of a workspace that were switched on or off. Not in a file of the workspace: agents can write those.
CREATE TABLE workspace_switches (
    tenant_id TEXT NOT NULL,
    workspace TEXT NOT NULL,
    noun TEXT NOT NULL,
    name TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (tenant_id, workspace, noun, name)
);
