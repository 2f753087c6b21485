-- No statement finds its rows by them, and each write paid for them.
DROP INDEX IF EXISTS sessions_owner;
DROP INDEX IF EXISTS webhooks_disabled;
