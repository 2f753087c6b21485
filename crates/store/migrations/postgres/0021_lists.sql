-- Lists of tokens and users are read in the order of an index, and not sorted as a whole for each page.
CREATE INDEX tokens_created ON tokens (created_at, token_id COLLATE "C");
CREATE INDEX users_created ON users (created_at, user_id COLLATE "C") WHERE removed_at IS NULL;
-- Runs that calls of another run have started, by the beginnings of their keys. In SQLite runs_key has that order.
CREATE INDEX runs_children ON runs (tenant_id, idempotency_key COLLATE "C") WHERE starts_with(idempotency_key, 'run_agent.');
