-- The ids that clients choose for their submissions belong to the kernel, whatever dialect they come from.
ALTER TABLE agent_runs RENAME TO command_aliases;
ALTER TABLE command_aliases RENAME COLUMN run_id TO alias;
DROP INDEX agent_runs_command;
CREATE INDEX command_aliases_command ON command_aliases (command_id, after_seq);
