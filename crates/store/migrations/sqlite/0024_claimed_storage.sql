-- Storage that is a volume claim expires like storage that is a directory.
DROP INDEX sessions_expiring;
CREATE INDEX sessions_expiring ON sessions (expires_at) WHERE storage_kind IN ('local', 'pvc');
