-- Provider profiles have owners. Trials that were made before are of the operator's profiles.
ALTER TABLE provider_validations ADD COLUMN tenant_id TEXT;

-- Who changed which profile, and what of it. Names only: no value of a credential or config is ever here.
CREATE TABLE provider_profile_changes (
    change_id TEXT PRIMARY KEY,
    profile TEXT NOT NULL,
    -- Null: the profile is the operator's.
    tenant_id TEXT,
    action TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    fields TEXT NOT NULL,
    credential_dropped BIGINT NOT NULL,
    resource_version TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX provider_profile_changes_created ON provider_profile_changes (created_at, change_id);
