-- The MCP server whose tool a permission request is about, as a digest: an answer to the request permits no call of another server.
ALTER TABLE permissions ADD COLUMN server_digest TEXT;
