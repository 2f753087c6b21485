//! The record of changes of profiles. It outlives the profiles, and is written before a change is made: a change that
//! cannot be recorded is not made.

use ostler_protocol::{
    Failure,
    cursors::{self, Cursor},
    ids::{ProfileChangeId, slug},
    kernel::provider_profiles::{
        Credential, ListProfileChanges, ProfileAction, ProfileChange, ProfileChangePage, ProfileOwner, changed_fields,
    },
};
use ostler_store::{self as store, kernel::provider_profiles::Owners};

use crate::{
    app::App,
    auth::{Access, Principal},
    secrets::Secret,
};

/// What is about to be done to a profile.
#[derive(Clone)]
pub struct Change {
    pub owner: ProfileOwner,
    pub profile: String,
    pub action: ProfileAction,
    pub by: String,
}

impl Change {
    pub fn new(caller: &Principal, owner: &ProfileOwner, profile: &str, action: ProfileAction) -> Self {
        Self { owner: owner.clone(), profile: profile.to_owned(), action, by: caller.name() }
    }

    /// Records the change from one secret to the next, `None` after a delete.
    pub async fn record(&self, app: &App, before: &Credential, after: Option<&Secret>) -> Result<(), Failure> {
        let nothing = Credential::default();
        let fields = changed_fields(before, after.map_or(&nothing, |after| &after.credential), &app.redactor);
        let change = ProfileChange {
            change_id: ProfileChangeId::new(app.ids.body()),
            profile: self.profile.clone(),
            tenant_id: self.owner.tenant_id().map(str::to_owned),
            action: self.action,
            by: self.by.clone(),
            fields,
            credential_dropped: after.is_some_and(|after| after.credential_dropped),
            resource_version: after.map(|after| after.resource_version.clone()),
            created_at: app.now(),
        };
        store::kernel::provider_profiles::insert_change(&app.db, &change).await?;
        let action = change.action.as_str();
        tracing::info!(
            profile = self.profile,
            tenant = self.owner.tenant_id(),
            action,
            by = self.by,
            "a profile is changed"
        );
        Ok(())
    }
}

/// Changes of the profiles that the caller may manage, newest first.
pub async fn list(app: &App, caller: &Principal, asked: ListProfileChanges) -> Result<ProfileChangePage, Failure> {
    Access::Provide.admit(caller)?;
    let limit = cursors::limit(asked.limit)?;
    let profile = asked.profile.as_deref().map(|profile| slug("profile", profile)).transpose()?;
    let owners = match caller.tenants_within(asked.tenant_id.as_deref())? {
        None => Owners::All,
        Some(tenants) if tenants.is_empty() => Owners::Operator,
        Some(tenants) => Owners::Tenants(tenants),
    };
    let fingerprint = cursors::fingerprint("profile-changes", &(format!("{owners:?}"), profile));
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let found =
        store::kernel::provider_profiles::list_changes(&app.db, &owners, profile, after.as_ref(), limit + 1).await;
    let mut changes = found?;
    let more = changes.len() > limit as usize;
    changes.truncate(limit as usize);
    let next_cursor = changes.last().filter(|_| more).map(|change| {
        Cursor { created_at_us: change.created_at.as_microsecond(), id: change.change_id.to_string() }
            .encode(&fingerprint)
    });
    Ok(ProfileChangePage { changes, next_cursor })
}
