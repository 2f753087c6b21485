-- Restores of a session's files that are under way. A row whose time has passed belongs to a server that stopped.
CREATE TABLE daemon_restores (
    session_id TEXT PRIMARY KEY,
    restore_id TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);

-- Up to which event retention has removed what was recorded in a session beside its runs.
CREATE TABLE session_payload_removals (
    session_id TEXT PRIMARY KEY,
    through_seq BIGINT NOT NULL,
    removed_at BIGINT NOT NULL
);

-- When a client was found absent. It is attached again when it is seen.
ALTER TABLE daemon_clients ADD COLUMN left_at BIGINT;
CREATE INDEX daemon_clients_present ON daemon_clients (last_seen_at) WHERE left_at IS NULL;
-- When a server last had an open event stream of the session.
ALTER TABLE daemon_sessions ADD COLUMN followed_at BIGINT;

-- The workspace that a launcher must serve to start the job's runner. NULL: any launcher may.
ALTER TABLE runner_jobs ADD COLUMN placement TEXT;

-- The facts of sessions that belong to no run, and reports of usage: few of many events.
CREATE INDEX events_of_session ON events (session_id, session_seq) WHERE type = 'session' AND run_id IS NULL;
CREATE INDEX events_usage ON events (session_id, session_seq) WHERE type = 'usage';

-- Earlier versions stored a session's row before the session itself, and a crash in between left the row.
UPDATE daemon_sessions SET closed_at = opened_at
    WHERE closed_at IS NULL AND session_id NOT IN (SELECT session_id FROM sessions);
