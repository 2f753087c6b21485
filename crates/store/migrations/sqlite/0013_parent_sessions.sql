-- The session whose conversation another one continues, up to the event of this number.
ALTER TABLE sessions ADD COLUMN parent_id TEXT;
ALTER TABLE sessions ADD COLUMN parent_seq BIGINT;
