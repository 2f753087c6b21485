-- The caller's own id of the conversation, and what else the caller keeps with a session.
ALTER TABLE sessions ADD COLUMN conversation_id TEXT;
ALTER TABLE sessions ADD COLUMN metadata TEXT;
-- The steers and interrupts of a turn, whose events count in its range.
CREATE INDEX commands_target ON commands (target_command_id) WHERE target_command_id IS NOT NULL;
