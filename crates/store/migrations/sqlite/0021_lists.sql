-- Lists of tokens and users are read in the order of an index, and not sorted as a whole for each page.
CREATE INDEX tokens_created ON tokens (created_at, token_id);
CREATE INDEX users_created ON users (created_at, user_id) WHERE removed_at IS NULL;
