-- The submission that a client's submission follows from, by the client's own account.
ALTER TABLE command_aliases ADD COLUMN parent TEXT;
-- Arguments of a permission request that an answer may replace, and those with which it was allowed.
ALTER TABLE permissions ADD COLUMN editable TEXT;
ALTER TABLE permissions ADD COLUMN edited TEXT;
