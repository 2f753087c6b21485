//! Names of the mesh and their certificates: who gets one, and who loses it. Everything that is done to a certificate is
//! written down before anybody hears of it.

use ostler_crypto::{
    certificates::Certificate,
    keys::{Curve, PublicKey},
};
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    cursors::{self, Cursor},
    mesh::{
        Aid,
        auth::not_registered,
        identities::{
            CreateInvite, Identity, IdentityPage, Invite, IssueCertificate, ListIdentities, Operation,
            RevocationReason, RevokeIdentity,
        },
    },
};
use ostler_store::{
    self as store, Db,
    mesh::identities::{Entry, Made, Revoked},
};
use serde::{Deserialize, Serialize};

use super::tokens::doubt;
use crate::{pki::Pki, state::Mesh};
use ostler_server::{
    app::App,
    auth::{Access, Principal},
    service::tokens::later,
};

const INVITE: &str = "invite";

/// An invitation, as it is sealed.
#[derive(Serialize, Deserialize)]
struct Invited {
    id: String,
    aid: Option<Aid>,
    until: Timestamp,
}

/// The name with its newest certificate. `None`: nobody has it.
pub async fn find(app: &App, aid: &Aid) -> Result<Option<Identity>, Failure> {
    Ok(store::mesh::identities::get(&app.db, aid).await?)
}

/// The name with one of the certificates that it ever had; with the newest, if none is named.
pub async fn version(app: &App, aid: &Aid, fingerprint: Option<&str>) -> Result<Identity, Failure> {
    match fingerprint {
        None => find(app, aid).await?.ok_or_else(|| not_registered(aid)),
        Some(one) => {
            let found = store::mesh::identities::find_by_fingerprint(&app.db, aid, one).await?;
            found.ok_or_else(|| Failure::not_found("certificate of this name with that fingerprint"))
        }
    }
}

/// A key that an agent may have.
pub fn agents_key(text: &str) -> Result<PublicKey, Failure> {
    let key = PublicKey::from_base64(text).filter(|key| key.curve() == Curve::P256);
    key.ok_or_else(|| {
        Failure::invalid("public-key", "the public key is the DER of one on P-256, in base64")
            .detail("field", "public_key")
    })
}

/// Checks that any agent may be given this name.
pub fn check_name(pki: &Pki, aid: &Aid) -> Result<(), Failure> {
    if aid.is_agent_service() {
        return Err(reserved(aid));
    }
    check_operators_name(pki, aid)
}

/// Checks that the operator may give this name to an agent, or take it away.
fn check_operators_name(pki: &Pki, aid: &Aid) -> Result<(), Failure> {
    if !aid.is_of(pki.domain()) {
        let message = format!("{aid} is not a name of {}", pki.domain());
        return Err(Failure::invalid("aid-domain", message).detail("field", "aid"));
    }
    if !aid.is_long_enough_to_register() {
        return Err(Failure::invalid("aid-length", "the name of an AID has 4 to 64 characters").detail("field", "aid"));
    }
    if !aid.is_free_to_take() && !aid.is_agent_service() {
        return Err(reserved(aid));
    }
    Ok(())
}

fn reserved(aid: &Aid) -> Failure {
    Failure::rule(FailureKind::Forbidden, "aid-reserved", format!("{aid} is the name of a service"))
}

/// Makes a certificate and writes it down. `None`: the name is taken, the invitation used, or the certificate that the asker
/// showed was revoked.
pub async fn certify(app: &App, aid: &Aid, key: &PublicKey, grounds: Grounds) -> Result<Option<Certificate>, Failure> {
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

/// Why somebody gets a certificate.
pub struct Grounds {
    pub operation: Operation,
    /// What it takes the place of, with everything before that.
    pub replaced: Option<Revoked>,
    /// The serial of the certificate that the asker showed.
    pub asked_with: Option<String>,
    /// The login by which they asked; it goes on with the new certificate.
    pub asked_by: Option<String>,
    /// The invitation that the asker showed.
    pub invite: Option<String>,
}

impl Grounds {
    pub fn of(operation: Operation) -> Self {
        Self { operation, replaced: None, asked_with: None, asked_by: None, invite: None }
    }
}

fn entry(grounds: Grounds, aid: Aid, made: &Certificate, at: Timestamp) -> Entry {
    let serial = made.serial().to_string();
    let made = Made { fingerprint: made.fingerprint(), certificate: made.to_pem(), ends_at: made.not_after() };
    let Grounds { operation, replaced, asked_with, asked_by, invite } = grounds;
    Entry { operation, aid, serial, made: Some(made), revoked: replaced, asked_with, asked_by, invite, at }
}

/// Writes down who certifies the domain, and the auth service's own certificate. Run once at start. An error says why this
/// server has no mesh.
pub async fn record(db: &Db, pki: &Pki, now: Timestamp) -> Result<Result<(), String>, store::StoreError> {
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
        let known = store::mesh::identities::get(db, &aid).await?.is_some();
        let operation = if known { Operation::Renew } else { Operation::Issue };
        store::mesh::identities::append(db, &entry(Grounds::of(operation), aid, auth, now)).await?;
    }
    Ok(())
}

/// Gives the auth service its next certificate in time. It is written down before anybody sees it.
pub async fn renew_auth(app: &App) -> Result<(), Failure> {
    let (Ok(pki), now) = (Mesh::of(app).pki(), app.wall()) else { return Ok(()) };
    let Some(next) = pki.next_auth(&app.config, now)? else { return Ok(()) };
    record_auth(&app.db, &next.certificate, now).await?;
    tracing::info!(until = %next.certificate.not_after(), "the auth service has its next certificate");
    pki.put_auth(next);
    Ok(())
}

/// Gives a name its first certificate, or one for another key, whatever the policy says.
pub async fn issue(app: &App, caller: &Principal, asked: IssueCertificate) -> Result<(Identity, bool), Failure> {
    Access::Operate.admit(caller)?;
    let IssueCertificate { aid, public_key } = asked;
    check_operators_name(Mesh::of(app).pki()?, &aid)?;
    let key = agents_key(&public_key)?;
    let known = find(app, &aid).await?;
    if let Some(known) = known.as_ref().filter(|known| known.revoked_at.is_none() && has_key(known, &key)) {
        return Ok((known.clone(), false));
    }
    let is_compromised = |known: &Identity| known.revocation_reason == Some(RevocationReason::KeyCompromise);
    if known.as_ref().is_some_and(|known| is_compromised(known) && has_key(known, &key)) {
        let message = "the key was revoked because somebody else may have it; make another";
        return Err(Failure::rule(FailureKind::StateConflict, "key-compromised", message));
    }
    let grounds = match &known {
        None => Grounds::of(Operation::Issue),
        Some(known) => {
            let superseded = Revoked { serial: known.serial.clone(), reason: RevocationReason::Superseded };
            let replaced = known.revoked_at.is_none().then_some(superseded);
            Grounds { replaced, ..Grounds::of(Operation::Rekey) }
        }
    };
    let by = caller.name().to_owned();
    app.to_the_end(|app| async move {
        certify(&app, &aid, &key, grounds).await?.ok_or_else(|| changed_meanwhile(&aid))?;
        tracing::info!(%aid, by, "the operator gave a certificate");
        if known.is_some() {
            end_logins(&app, &aid).await?;
        }
        Ok((version(&app, &aid, None).await?, true))
    })
    .await
}

pub fn has_key(identity: &Identity, key: &PublicKey) -> bool {
    Certificate::from_pem(&identity.certificate).is_some_and(|certificate| certificate.public_key() == key)
}

/// Revokes all of a name's certificates. Idempotent: the first reason stands.
pub async fn revoke(app: &App, caller: &Principal, aid: &Aid, asked: RevokeIdentity) -> Result<Identity, Failure> {
    Access::Operate.admit(caller)?;
    // A service's certificate is replaced, not revoked: nobody could log in any more.
    check_operators_name(Mesh::of(app).pki()?, aid)?;
    let (aid, by) = (aid.clone(), caller.name().to_owned());
    app.to_the_end(|app| async move {
        let revoked = revoke_newest(&app, &by, &aid, asked.reason).await?;
        end_logins(&app, &aid).await?;
        Ok(revoked)
    })
    .await
}

/// Whoever has the key may change it meanwhile, here or at another server: what is newest then is what must go.
async fn revoke_newest(app: &App, by: &str, aid: &Aid, reason: RevocationReason) -> Result<Identity, Failure> {
    let _turn = Mesh::of(app).certifying.lock().await;
    let mut attempts = app.attempts(|| changed_meanwhile(aid));
    loop {
        attempts.start_next()?;
        let newest = version(app, aid, None).await?;
        if newest.revoked_at.is_some() {
            return Ok(newest);
        }
        let revoked = Some(Revoked { serial: newest.serial.clone(), reason });
        let (operation, serial, at) = (Operation::Revoke, newest.serial, app.wall());
        let aid = aid.clone();
        let (made, asked_with, asked_by, invite) = (None, None, None, None);
        let entry = Entry { operation, aid, serial, made, revoked, asked_with, asked_by, invite, at };
        if store::mesh::identities::append(&app.db, &entry).await? {
            tracing::info!(aid = %entry.aid, by, reason = reason.as_str(), "a name was revoked");
        }
    }
}

fn changed_meanwhile(aid: &Aid) -> Failure {
    Failure::rule(FailureKind::StateConflict, "aid-changed", format!("{aid} was changed meanwhile; ask again"))
}

/// Ends the connections, to whichever server, that were begun with keys that are good no longer, and clears away logins
/// and prekeys that were. What these can still do does not depend on it.
pub async fn end_logins(app: &App, aid: &Aid) -> Result<(), Failure> {
    doubt(app, aid);
    store::mesh::logins::delete_fallen(&app.db, aid).await?;
    Ok(store::mesh::prekeys::delete_of(&app.db, aid).await?)
}

pub async fn get(app: &App, caller: &Principal, aid: &Aid) -> Result<Identity, Failure> {
    Access::Operate.admit(caller)?;
    version(app, aid, None).await
}

pub async fn list(app: &App, caller: &Principal, asked: ListIdentities) -> Result<IdentityPage, Failure> {
    Access::Operate.admit(caller)?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("identities", &());
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let mut identities = store::mesh::identities::list(&app.db, after.as_ref(), limit + 1).await?;
    let more = identities.len() > limit as usize;
    identities.truncate(limit as usize);
    let next_cursor = identities.last().filter(|_| more).map(|last| {
        Cursor { created_at_us: last.certified_at.as_microsecond(), id: last.aid.to_string() }.encode(&fingerprint)
    });
    Ok(IdentityPage { identities, next_cursor })
}

/// Lets somebody register one name. It is sealed, not kept.
pub fn invite(app: &App, caller: &Principal, asked: &CreateInvite) -> Result<Invite, Failure> {
    Access::Operate.admit(caller)?;
    let pki = Mesh::of(app).pki()?;
    if let Some(aid) = &asked.aid {
        check_name(pki, aid)?;
    }
    let until = later(app.wall(), asked.life_ms()?)?;
    let invited = Invited { id: app.ids.body().simple().to_string(), aid: asked.aid.clone(), until };
    tracing::info!(aid = asked.aid.as_ref().map(Aid::as_str), by = caller.name(), "somebody was invited");
    Ok(Invite { invite: pki.ticket(INVITE, &invited), expires_at: until })
}

/// The id of an invitation to take this name. It is used up by the row that gives the name, and not before.
pub fn open_invite(app: &App, pki: &Pki, aid: &Aid, invite: Option<&str>) -> Result<String, Failure> {
    let invite = invite.ok_or_else(|| not_invited("names are given by invitation here"))?;
    let invited: Invited = pki.open_ticket(INVITE, invite).ok_or_else(|| not_invited("the invitation is not valid"))?;
    if app.wall() > invited.until || invited.aid.as_ref().is_some_and(|named| named != aid) {
        return Err(not_invited("the invitation is over, or for another name"));
    }
    Ok(invited.id)
}

/// Whether an invitation still gives a name.
pub async fn check_unused(app: &App, invite: &str) -> Result<(), Failure> {
    match store::mesh::identities::is_used(&app.db, invite).await? {
        true => Err(not_invited("the invitation was used")),
        false => Ok(()),
    }
}

fn not_invited(message: &str) -> Failure {
    Failure::rule(FailureKind::Forbidden, "invite", message)
}
