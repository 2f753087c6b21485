//! Names of the mesh and their certificates: issue, renew, revoke. Each change of a certificate is stored before any client
//! learns of it.

use ostler_crypto::{
    certificates::Certificate,
    keys::{Curve, PublicKey},
};
use ostler_protocol::{
    Failure, Rule, Timestamp,
    created::Created,
    cursors::{Cursor, PageRequest},
    mesh::{
        Aid,
        auth::not_registered,
        identities::{
            CertificateOperation, CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities,
            RevocationReason, RevokeIdentity,
        },
    },
};
use ostler_store::{
    self as store, Db,
    mesh::identities::{Entry, Made, Revoked},
};
use serde::{Deserialize, Serialize};

use super::tokens::recheck_logins;
use crate::{pki::Pki, state::Mesh};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
    service::tokens::later,
};

const INVITE: &str = "invite";

/// An invitation, as it is sealed.
#[derive(Serialize, Deserialize)]
struct InviteTicket {
    id: String,
    aid: Option<Aid>,
    until: Timestamp,
}

/// The name with its newest certificate. `None` if it is not registered.
pub(crate) async fn find(app: &App, aid: &Aid) -> Result<Option<Identity>, Failure> {
    Ok(store::mesh::identities::get(&app.db, aid).await?)
}

/// The name with one of the certificates that it ever had: the newest, unless a fingerprint is given.
pub(crate) async fn version(app: &App, aid: &Aid, fingerprint: Option<&str>) -> Result<Identity, Failure> {
    match fingerprint {
        None => find(app, aid).await?.ok_or_else(|| not_registered(aid)),
        Some(one) => {
            let found = store::mesh::identities::find_by_fingerprint(&app.db, aid, one).await?;
            found.ok_or_else(|| Failure::not_found("certificate of this name with that fingerprint"))
        }
    }
}

/// Parses a public key that an identity may have.
pub(crate) fn identity_key(text: &str) -> Result<PublicKey, Failure> {
    let key = PublicKey::from_base64(text).filter(|key| key.curve() == Curve::P256);
    key.ok_or_else(|| {
        Failure::invalid(Rule::PublicKey, "the public key is the DER of one on P-256, in base64")
            .detail("field", "public_key")
    })
}

/// Checks that any client may register this name.
pub(crate) fn check_name(pki: &Pki, aid: &Aid) -> Result<(), Failure> {
    if aid.is_agent_service() {
        return Err(reserved(aid));
    }
    check_operators_name(pki, aid)
}

/// Checks that the operator may issue certificates for this name, or revoke them.
fn check_operators_name(pki: &Pki, aid: &Aid) -> Result<(), Failure> {
    if !aid.is_of(pki.domain()) {
        let message = format!("{aid} is not a name of {}", pki.domain());
        return Err(Failure::invalid(Rule::AidDomain, message).detail("field", "aid"));
    }
    if !aid.is_long_enough_to_register() {
        return Err(
            Failure::invalid(Rule::AidLength, "the name of an AID has 4 to 64 characters").detail("field", "aid")
        );
    }
    if !aid.is_free_to_take() && !aid.is_agent_service() {
        return Err(reserved(aid));
    }
    Ok(())
}

fn reserved(aid: &Aid) -> Failure {
    Failure::rule(Rule::AidReserved, format!("{aid} is the name of a service"))
}

/// Issues a certificate and stores it. `None` if the name is registered already, the invitation was used, or the certificate
/// that the client presented was revoked.
pub(crate) async fn certify(
    app: &App,
    aid: &Aid,
    key: &PublicKey,
    grounds: Grounds,
) -> Result<Option<Certificate>, Failure> {
    let now = app.wall();
    let made = Mesh::of(app).pki()?.certify(aid, key, now);
    let made = made.ok_or_else(|| Failure::internal(format!("{aid} cannot be certified")))?;
    let _turn = Mesh::of(app).certifying.lock().await;
    let operation = grounds.operation;
    let entry = entry(grounds, aid.clone(), &made, now);
    let is_written = store::mesh::identities::append(&app.db, &entry).await?;
    if is_written {
        tracing::info!(%aid, operation = operation.as_str(), serial = entry.serial, "a certificate was made");
    }
    Ok(is_written.then_some(made))
}

/// Why a certificate is issued.
pub(crate) struct Grounds {
    pub operation: CertificateOperation,
    /// The certificate that it replaces, with all earlier ones.
    pub replaced: Option<Revoked>,
    /// The serial of the certificate that the client presented.
    pub shown_serial: Option<String>,
    /// The login of the request; it stays valid under the new certificate.
    pub login_id: Option<String>,
    /// The invitation that the client presented.
    pub invite: Option<String>,
}

impl Grounds {
    pub(crate) fn of(operation: CertificateOperation) -> Self {
        Self { operation, replaced: None, shown_serial: None, login_id: None, invite: None }
    }
}

fn entry(grounds: Grounds, aid: Aid, made: &Certificate, at: Timestamp) -> Entry {
    let serial = made.serial().to_string();
    let made = Made { fingerprint: made.fingerprint(), certificate: made.to_pem(), ends_at: made.not_after() };
    let Grounds { operation, replaced: revoked, shown_serial, login_id, invite } = grounds;
    let (made, asked_with, asked_by) = (Some(made), shown_serial, login_id);
    Entry { operation, aid, serial, made, revoked, asked_with, asked_by, invite, at }
}

/// Stores which authority certifies the domain, and the auth service's own certificate. Run once at start. The inner error is
/// the reason why this server has no mesh.
pub(crate) async fn record(db: &Db, pki: &Pki, now: Timestamp) -> Result<Result<(), String>, store::StoreError> {
    let (domain, ours) = (pki.domain().as_str(), pki.issuer().certificate().fingerprint());
    if store::mesh::identities::claim_issuer(db, domain, &ours, now).await? != ours {
        let message = "another authority certifies this store's domain; servers of one store share mesh.pki_directory";
        return Ok(Err(format!("{message} (domain {domain})")));
    }
    record_auth(db, &pki.auth().certificate, now).await?;
    Ok(Ok(()))
}

async fn record_auth(db: &Db, auth: &Certificate, now: Timestamp) -> Result<(), store::StoreError> {
    if store::mesh::identities::find_status(db, &auth.serial().to_string()).await?.is_none() {
        let aid: Aid = auth.name().parse().map_err(store::StoreError::corrupt)?;
        let exists = store::mesh::identities::get(db, &aid).await?.is_some();
        let operation = if exists { CertificateOperation::Renew } else { CertificateOperation::Issue };
        store::mesh::identities::append(db, &entry(Grounds::of(operation), aid, auth, now)).await?;
    }
    Ok(())
}

/// Renews the auth service's certificate in time. It is stored before any client sees it.
pub(crate) async fn renew_auth(app: &App) -> Result<(), Failure> {
    let (Ok(pki), now) = (Mesh::of(app).pki(), app.wall()) else { return Ok(()) };
    let Some(next) = pki.next_auth(&app.config, now)? else { return Ok(()) };
    record_auth(&app.db, &next.certificate, now).await?;
    tracing::info!(until = %next.certificate.not_after(), "the auth service has its next certificate");
    pki.put_auth(next);
    Ok(())
}

/// Issues the first certificate of a name, or one for another key, regardless of the registration policy.
pub(crate) async fn issue(
    app: &App,
    caller: &Principal,
    request: IssueCertificate,
) -> Result<Created<Identity>, Failure> {
    Access::Operate.admit(caller)?;
    let IssueCertificate { aid, public_key } = request;
    check_operators_name(Mesh::of(app).pki()?, &aid)?;
    let key = identity_key(&public_key)?;
    let existing = find(app, &aid).await?;
    if let Some(existing) =
        existing.as_ref().filter(|existing| existing.revoked_at.is_none() && has_key(existing, &key))
    {
        return Ok(Created::existing(existing.clone()));
    }
    let is_compromised = |existing: &Identity| existing.revocation_reason == Some(RevocationReason::KeyCompromise);
    if existing.as_ref().is_some_and(|existing| is_compromised(existing) && has_key(existing, &key)) {
        let message = "the key was revoked as compromised; generate a new key";
        return Err(Failure::rule(Rule::KeyCompromised, message));
    }
    let grounds = match &existing {
        None => Grounds::of(CertificateOperation::Issue),
        Some(existing) => {
            let superseded = Revoked { serial: existing.serial.clone(), reason: RevocationReason::Superseded };
            let replaced = existing.revoked_at.is_none().then_some(superseded);
            Grounds { replaced, ..Grounds::of(CertificateOperation::Rekey) }
        }
    };
    let by = caller.name().to_owned();
    app.to_the_end(|app| async move {
        certify(&app, &aid, &key, grounds).await?.ok_or_else(|| concurrent_change(&aid))?;
        tracing::info!(%aid, by, "the operator gave a certificate");
        if existing.is_some() {
            end_logins(&app, &aid).await?;
        }
        Ok(Created::new(version(&app, &aid, None).await?))
    })
    .await
}

pub(crate) fn has_key(identity: &Identity, key: &PublicKey) -> bool {
    Certificate::from_pem(&identity.certificate).is_some_and(|certificate| certificate.public_key() == key)
}

/// Revokes all of a name's certificates. Idempotent: the first reason is kept.
pub(crate) async fn revoke(
    app: &App,
    caller: &Principal,
    aid: &Aid,
    request: RevokeIdentity,
) -> Result<Identity, Failure> {
    Access::Operate.admit(caller)?;
    // A service's certificate is replaced, not revoked: otherwise no client could log in.
    check_operators_name(Mesh::of(app).pki()?, aid)?;
    let (aid, by) = (aid.clone(), caller.name().to_owned());
    app.to_the_end(|app| async move {
        let revoked = revoke_newest(&app, &by, &aid, request.reason).await?;
        end_logins(&app, &aid).await?;
        Ok(revoked)
    })
    .await
}

/// Revokes the newest certificate. The owner may change the key concurrently, on this server or another: then the newer
/// certificate must be revoked.
async fn revoke_newest(app: &App, by: &str, aid: &Aid, reason: RevocationReason) -> Result<Identity, Failure> {
    let _turn = Mesh::of(app).certifying.lock().await;
    let mut attempts = app.db.attempts(|| concurrent_change(aid));
    loop {
        attempts.start_next()?;
        let newest = version(app, aid, None).await?;
        if newest.revoked_at.is_some() {
            return Ok(newest);
        }
        let revoked = Some(Revoked { serial: newest.serial.clone(), reason });
        let (operation, serial, at) = (CertificateOperation::Revoke, newest.serial, app.wall());
        let aid = aid.clone();
        let (made, asked_with, asked_by, invite) = (None, None, None, None);
        let entry = Entry { operation, aid, serial, made, revoked, asked_with, asked_by, invite, at };
        if store::mesh::identities::append(&app.db, &entry).await? {
            tracing::info!(aid = %entry.aid, by, reason = reason.as_str(), "a name was revoked");
        }
    }
}

fn concurrent_change(aid: &Aid) -> Failure {
    Failure::rule(Rule::AidChanged, format!("{aid} was changed concurrently; retry"))
}

/// Closes the connections, to any server, whose logins used keys that are no longer valid, and deletes those logins and prekeys.
/// This only cleans up: an invalid login is rejected anyway.
pub(crate) async fn end_logins(app: &App, aid: &Aid) -> Result<(), Failure> {
    recheck_logins(app, aid);
    store::mesh::logins::delete_fallen(&app.db, aid).await?;
    Ok(store::mesh::prekeys::delete_of(&app.db, aid).await?)
}

pub(crate) async fn get(app: &App, caller: &Principal, aid: &Aid) -> Result<Identity, Failure> {
    Access::Operate.admit(caller)?;
    version(app, aid, None).await
}

pub(crate) async fn list(app: &App, caller: &Principal, request: ListIdentities) -> Result<IdentityPage, Failure> {
    Access::Operate.admit(caller)?;
    let page = PageRequest::new("identities", &(), request.limit, request.cursor.as_deref())?;
    let found = store::mesh::identities::list(&app.db, page.after.as_ref(), page.rows_max()).await?;
    let page = page.page(found, |last| Cursor::after(last.certified_at, &last.aid));
    Ok(IdentityPage { identities: page.items, next_cursor: page.next_cursor })
}

/// Creates an invitation to register one name. It is sealed, and not stored.
pub(crate) fn invite(app: &App, caller: &Principal, request: &CreateInvite) -> Result<Invite, Failure> {
    Access::Operate.admit(caller)?;
    let pki = Mesh::of(app).pki()?;
    if let Some(aid) = &request.aid {
        check_name(pki, aid)?;
    }
    let until = later(app.wall(), request.life_ms()?)?;
    let ticket = InviteTicket { id: app.ids.body().simple().to_string(), aid: request.aid.clone(), until };
    tracing::info!(aid = request.aid.as_ref().map(Aid::as_str), by = caller.name(), "an invitation was created");
    Ok(Invite { invite: pki.ticket(INVITE, &ticket), expires_at: until })
}

/// The id of an invitation to register this name. Only the row that registers the name spends it.
pub(crate) fn open_invite(app: &App, pki: &Pki, aid: &Aid, invite: Option<&str>) -> Result<String, Failure> {
    let invite = invite.ok_or_else(|| not_invited("a name can only be registered with an invitation"))?;
    let ticket: InviteTicket =
        pki.open_ticket(INVITE, invite).ok_or_else(|| not_invited("the invitation is not valid"))?;
    if app.wall() > ticket.until || ticket.aid.as_ref().is_some_and(|named| named != aid) {
        return Err(not_invited("the invitation is over, or for another name"));
    }
    Ok(ticket.id)
}

/// Checks that an invitation was not used.
pub(crate) async fn check_unused(app: &App, invite: &str) -> Result<(), Failure> {
    match store::mesh::identities::is_used(&app.db, invite).await? {
        true => Err(not_invited("the invitation was used")),
        false => Ok(()),
    }
}

fn not_invited(message: &str) -> Failure {
    Failure::rule(Rule::Invite, message)
}
