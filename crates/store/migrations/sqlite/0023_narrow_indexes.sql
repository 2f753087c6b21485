-- Most sessions have neither a name nor a key of their caller. Rows without one need no entry.
DROP INDEX sessions_external;
CREATE UNIQUE INDEX sessions_external ON sessions (tenant_id, external_id) WHERE external_id IS NOT NULL;
DROP INDEX sessions_key;
CREATE UNIQUE INDEX sessions_key ON sessions (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
