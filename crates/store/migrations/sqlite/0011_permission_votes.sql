-- Whose answer to a permission request counts, and the votes so far. Without a strategy the first valid answer decides.
ALTER TABLE permissions ADD COLUMN strategy TEXT;
ALTER TABLE permissions ADD COLUMN voters TEXT;
ALTER TABLE permissions ADD COLUMN quorum BIGINT;
ALTER TABLE permissions ADD COLUMN votes TEXT;
ALTER TABLE permissions ADD COLUMN refusals BIGINT NOT NULL DEFAULT 0;
CREATE INDEX permissions_pending ON permissions (session_id) WHERE status = 'pending';
-- The clients that are attached to a session.
ALTER TABLE sessions ADD COLUMN participants TEXT;
-- The client and the principal that submitted a command.
ALTER TABLE commands ADD COLUMN origin TEXT;
ALTER TABLE commands ADD COLUMN submitted_by TEXT;
-- Clients that vote name a request by its id alone.
CREATE INDEX permissions_id ON permissions (permission_id);
