-- Payloads that are too large for their commands' rows. The command has a short form of it.
CREATE TABLE command_payloads (
    command_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX command_payloads_session ON command_payloads (session_id);
