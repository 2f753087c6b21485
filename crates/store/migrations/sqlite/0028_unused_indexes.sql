-- No statement finds its rows by them, and each write paid for them.
DROP INDEX sessions_owner;
DROP INDEX webhooks_disabled;
