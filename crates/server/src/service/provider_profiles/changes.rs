//! The record of changes of profiles. It outlives the profiles, and is written before a change is made: a change that
//! cannot be recorded is not made.

use ostler_protocol::{
    Failure,
    cursors::{Cursor, Page, PageRequest},
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

/// A change of a profile that is about to be made.
#[derive(Clone)]
pub(super) struct AuditedChange {
    pub owner: ProfileOwner,
    pub profile: String,
    pub action: ProfileAction,
    pub by: String,
}

impl AuditedChange {
    pub(super) fn new(caller: &Principal, owner: &ProfileOwner, profile: &str, action: ProfileAction) -> Self {
        Self { owner: owner.clone(), profile: profile.to_owned(), action, by: caller.name() }
    }

    /// Records the change from one secret to the next, `None` after a delete.
    pub(super) async fn record(&self, app: &App, before: &Credential, after: Option<&Secret>) -> Result<(), Failure> {
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
pub async fn list(app: &App, caller: &Principal, request: ListProfileChanges) -> Result<ProfileChangePage, Failure> {
    Access::Provide.admit(caller)?;
    let profile = request.profile.as_deref().map(|profile| slug("profile", profile)).transpose()?;
    let owners = match caller.tenants_within(request.tenant_id.as_deref())? {
        None => Owners::All,
        Some(tenants) if tenants.is_empty() => Owners::Operator,
        Some(tenants) => Owners::Tenants(tenants),
    };
    let filters = (format!("{owners:?}"), profile);
    let page = PageRequest::new("profile-changes", &filters, request.limit, request.cursor.as_deref())?;
    let (after, rows_max) = (page.after.as_ref(), page.rows_max());
    let changes = store::kernel::provider_profiles::list_changes(&app.db, &owners, profile, after, rows_max).await?;
    let Page { items: changes, next_cursor } =
        page.page(changes, |change| Cursor::after(change.created_at, change.change_id));
    Ok(ProfileChangePage { changes, next_cursor })
}
