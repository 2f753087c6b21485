-- Whether the texts of a run's commands, jobs and permission requests were removed with its payloads. Earlier versions removed the
-- payloads only; retention goes through those runs once more.
ALTER TABLE payload_removals ADD COLUMN texts_removed BIGINT NOT NULL DEFAULT 0;

-- Sessions that the server has started by itself, as a schedule does, and the others of an owner in the order of their creation.
ALTER TABLE sessions ADD COLUMN background BIGINT NOT NULL DEFAULT 0;
UPDATE sessions SET background = 1 WHERE owner IS NOT NULL AND external_id IS NOT NULL AND (
    EXISTS (SELECT 1 FROM runs r WHERE r.session_name = sessions.external_id AND r.session_id = sessions.session_id
        AND r.labels LIKE '%"automation":%')
    OR EXISTS (SELECT 1 FROM automation_starts s WHERE s.thread_id = sessions.external_id AND s.owner_id = sessions.owner));
CREATE INDEX sessions_chats ON sessions (owner, background, created_at, session_id)
    WHERE owner IS NOT NULL AND external_id IS NOT NULL;

-- The command of a start has the reason for its end; a copy would outlive retention and erasure.
UPDATE automation_starts SET message = NULL
    WHERE command_id IS NOT NULL AND message <> 'the thread of the run was erased';

-- Sessions without a name that were marked as erased, for the sweeper of those that are not erased completely.
CREATE INDEX sessions_half_erased ON sessions (erased_at) WHERE erased_at IS NOT NULL AND external_id IS NULL;
