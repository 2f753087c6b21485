-- Every write evaluates the conditions of partial indexes. For a list of three or more values, SQLite builds a table in memory
-- each time; for these conditions it does not.
DROP INDEX commands_deadline;
CREATE INDEX commands_deadline ON commands (deadline_at)
    WHERE state = 'pending' OR state = 'acked' OR state = 'running';
DROP INDEX commands_unfinished;
CREATE INDEX commands_unfinished ON commands (run_id)
    WHERE state = 'pending' OR state = 'acked' OR state = 'running';
DROP INDEX events_said;
CREATE INDEX events_said ON events (session_id, created_at, session_seq)
    WHERE type = 'user_message' OR type = 'assistant_message' OR type = 'backend_status';
