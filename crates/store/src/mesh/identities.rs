//! Names of the mesh and their certificates: one append-only table of every operation on a certificate. Owners of names,
//! revocations and the transparency log are read from it.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    mesh::{
        Aid,
        identities::{CertificateOperation, Identity, RevocationReason},
    },
};

use crate::{
    db::Db,
    error::StoreError,
    mesh::{certificates::is_good, logins},
    record::{self, ColumnValue, Reader, Record, Statement, Value, opt_text, record, text},
};

/// An operation on a certificate.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub operation: CertificateOperation,
    pub aid: Aid,
    /// The serial of the certificate that was made, or else of the one that was revoked.
    pub serial: String,
    pub made: Option<Made>,
    /// Every earlier certificate of the name is no longer valid.
    pub revoked: Option<Revoked>,
    /// The certificate that the request was proved with. If it is no longer valid, nothing is written.
    pub asked_with: Option<String>,
    /// The login that sent the request: it continues with the certificate that was made.
    pub asked_by: Option<String>,
    /// The invitation that is used up with it.
    pub invite: Option<String>,
    pub at: Timestamp,
}

/// A certificate that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    pub fingerprint: String,
    /// PEM.
    pub certificate: String,
    pub ends_at: Timestamp,
}

/// The newest certificate that is no longer valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Revoked {
    pub serial: String,
    pub reason: RevocationReason,
}

/// The status of a serial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    Good,
    Revoked { at: Timestamp, reason: RevocationReason },
}

/// Appends an operation. False if the name or the invitation is in use, or a certificate was made or revoked before; nothing
/// was written then. If a concurrent operation uses the number first, this one is decided again.
pub async fn append(db: &Db, entry: &Entry) -> Result<bool, StoreError> {
    let mut attempts = db.attempts(|| StoreError::corrupt("the log of certificates gives out no number"));
    loop {
        attempts.start_next()?;
        let mut statements = vec![appended(entry)];
        statements.extend(entry.asked_by.as_ref().map(|login_id| logins::go_on(login_id, &entry.serial)));
        match db.write_together(statements).await {
            Err(error) if error.is_unique_violation() => {
                if contradicts(db, entry).await? {
                    return Ok(false);
                }
            }
            written => return written,
        }
    }
}

/// A row of the log.
pub(crate) struct CertificateRow {
    number: i64,
    operation: CertificateOperation,
    aid: Aid,
    serial: String,
    fingerprint: Option<String>,
    certificate: Option<String>,
    ends_at: Option<Timestamp>,
    revoked_serial: Option<String>,
    reason: Option<RevocationReason>,
    invite: Option<String>,
    created_at: Timestamp,
}

record! {
    CertificateRow, row in "mesh_certificates";
    key {
        number: int;
    }
    fixed {
        operation: named(CertificateOperation);
        aid: id;
        serial: text;
        fingerprint: opt_text;
        certificate: opt_text;
        ends_at: opt_time;
        revoked_serial: opt_text;
        reason: opt_named(RevocationReason);
        invite: opt_text;
        created_at: time;
    }
    state {}
}

impl CertificateRow {
    fn of(number: i64, entry: &Entry) -> Self {
        let (made, revoked) = (entry.made.as_ref(), entry.revoked.as_ref());
        Self {
            number,
            operation: entry.operation,
            aid: entry.aid.clone(),
            serial: entry.serial.clone(),
            fingerprint: made.map(|made| made.fingerprint.clone()),
            certificate: made.map(|made| made.certificate.clone()),
            ends_at: made.map(|made| made.ends_at),
            revoked_serial: revoked.map(|revoked| revoked.serial.clone()),
            reason: revoked.map(|revoked| revoked.reason),
            invite: entry.invite.clone(),
            created_at: entry.at,
        }
    }

    /// The entry, without what only decided whether it was written.
    fn into_entry(self) -> Entry {
        let made = match (self.fingerprint, self.certificate, self.ends_at) {
            (Some(fingerprint), Some(certificate), Some(ends_at)) => Some(Made { fingerprint, certificate, ends_at }),
            _ => None,
        };
        let reason = self.reason.unwrap_or_default();
        Entry {
            operation: self.operation,
            aid: self.aid,
            serial: self.serial,
            made,
            revoked: self.revoked_serial.map(|serial| Revoked { serial, reason }),
            asked_with: None,
            asked_by: None,
            invite: None,
            at: self.created_at,
        }
    }
}

/// Appends the entry under the next number.
fn appended(entry: &Entry) -> Statement {
    let row = CertificateRow::of(0, entry);
    let values = row.fixed().into_iter().skip(CertificateRow::KEY);
    let mut args: Vec<Value> = values.map(ColumnValue::into_owned).collect();
    let marks: Vec<_> = (1..=args.len()).map(|n| format!("${n}")).collect();
    args.push(opt_text(entry.asked_with.as_ref()));
    let asked_with = format!("${}", args.len());
    // With a condition on the aggregate itself, SQLite would walk over all numbers.
    let sql = format!(
        "INSERT INTO mesh_certificates ({}) SELECT (SELECT COALESCE(MAX(number), 0) + 1 FROM mesh_certificates), {} \
         WHERE {asked_with} IS NULL OR {} RETURNING number",
        CertificateRow::NAMES,
        marks.join(", "),
        is_good(&asked_with)
    );
    Statement::guard(sql, args)
}

const USED: &str = "SELECT 1 FROM mesh_certificates WHERE invite = $1";

/// Whether an invitation was used to register a name.
pub async fn is_used(db: &Db, invite: &str) -> Result<bool, StoreError> {
    Ok(db.read_one(USED, vec![invite.into()], |_| Ok(())).await?.is_some())
}

/// Whether a stored operation excludes this one, and not only its number.
async fn contradicts(db: &Db, entry: &Entry) -> Result<bool, StoreError> {
    const TAKEN: &str = "SELECT 1 FROM mesh_certificates WHERE aid = $1 AND operation = 'issue'";
    const MADE: &str = "SELECT 1 FROM mesh_certificates WHERE serial = $1 AND certificate IS NOT NULL";
    const REVOKED: &str = "SELECT 1 FROM mesh_certificates WHERE revoked_serial = $1";
    let issued = (entry.operation == CertificateOperation::Issue).then(|| text(&entry.aid));
    let made = entry.made.as_ref().map(|_| entry.serial.as_str().into());
    let revoked = entry.revoked.as_ref().map(|revoked| revoked.serial.as_str().into());
    let invite = entry.invite.as_deref().map(Value::from);
    for (sql, arg) in [(TAKEN, issued), (MADE, made), (REVOKED, revoked), (USED, invite)] {
        let Some(arg) = arg else { continue };
        if db.read_one(sql, vec![arg], |_| Ok(())).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A certificate `c` ends with the first row `r` that revokes something of its name's after it.
const ENDED: &str = "r.number = (SELECT MIN(x.number) FROM mesh_certificates AS x \
    WHERE x.aid = c.aid AND x.number > c.number AND x.revoked_serial IS NOT NULL)";

fn identities(rest: &str) -> String {
    format!(
        "SELECT c.aid, c.serial, c.fingerprint, c.certificate, c.created_at, r.created_at AS revoked_at, r.reason \
         FROM mesh_certificates AS c LEFT JOIN mesh_certificates AS r ON {ENDED} WHERE c.certificate IS NOT NULL {rest}"
    )
}

fn identity(row: &mut Reader<'_>) -> Result<Identity, StoreError> {
    Ok(Identity {
        aid: row.at("aid")?.id()?,
        serial: row.at("serial")?.text()?,
        cert_fingerprint: row.at("fingerprint")?.text()?,
        certificate: row.at("certificate")?.text()?,
        certified_at: row.at("created_at")?.time()?,
        revoked_at: row.at("revoked_at")?.opt_time()?,
        revocation_reason: row.at("reason")?.opt_text()?.as_deref().and_then(RevocationReason::parse),
    })
}

/// The name with its newest certificate. `None` if it is not registered.
pub async fn get(db: &Db, aid: &Aid) -> Result<Option<Identity>, StoreError> {
    db.read_one(identities("AND c.aid = $1 ORDER BY c.number DESC LIMIT 1"), vec![text(aid)], identity).await
}

/// The name with one of the certificates that it ever had.
pub async fn find_by_fingerprint(db: &Db, aid: &Aid, fingerprint: &str) -> Result<Option<Identity>, StoreError> {
    let sql = identities("AND c.fingerprint = $1 AND c.aid = $2");
    db.read_one(sql, vec![fingerprint.into(), text(aid)], identity).await
}

/// The status of a certificate by its serial. `None` if it was not made here.
pub async fn find_status(db: &Db, serial: &str) -> Result<Option<Status>, StoreError> {
    let sql = format!(
        "SELECT r.created_at AS revoked_at, r.reason FROM mesh_certificates AS c LEFT JOIN mesh_certificates AS r ON {ENDED} \
         WHERE c.serial = $1 AND c.certificate IS NOT NULL"
    );
    db.read_one(sql, vec![serial.into()], |row| {
        Ok(match row.at("revoked_at")?.opt_time()? {
            Some(at) => Status::Revoked { at, reason: row.at("reason")?.named(RevocationReason::parse)? },
            None => Status::Good,
        })
    })
    .await
}

/// The number of the newest revocation. 0 if nothing was revoked yet.
pub async fn last_revocation(db: &Db) -> Result<i64, StoreError> {
    const SQL: &str = "SELECT number FROM mesh_certificates WHERE reason IS NOT NULL ORDER BY number DESC LIMIT 1";
    Ok(db.read_one(SQL, vec![], |row| row.int()).await?.unwrap_or_default())
}

/// Revoked certificates that would otherwise be valid at that time: serial, time, reason.
pub async fn list_revoked(
    db: &Db,
    good_at: Timestamp,
) -> Result<Vec<(String, Timestamp, RevocationReason)>, StoreError> {
    let decode = |row: &mut Reader<'_>| {
        let (serial, at) = (row.at("serial")?.text()?, row.at("revoked_at")?.time()?);
        Ok((serial, at, row.at("reason")?.named(RevocationReason::parse)?))
    };
    db.read(all_revoked(), vec![good_at.into()], decode).await
}

fn all_revoked() -> String {
    format!(
        "SELECT c.serial, r.created_at AS revoked_at, r.reason FROM mesh_certificates AS c JOIN mesh_certificates AS r ON {ENDED} \
         WHERE c.certificate IS NOT NULL AND c.ends_at > $1 AND c.aid IN \
         (SELECT aid FROM mesh_certificates WHERE revoked_serial IS NOT NULL) ORDER BY r.number, c.number"
    )
}

/// The engine's plan for that.
pub async fn explain_revoked(db: &Db, good_at: Timestamp) -> Result<String, StoreError> {
    Ok(db.explain(&all_revoked(), vec![good_at.into()]).await?.join("\n"))
}

/// Names with their newest certificates, the newest first.
pub async fn list(db: &Db, after: Option<&Cursor>, limit: u32) -> Result<Vec<Identity>, StoreError> {
    let (mut args, mut filter): (Vec<Value>, _) = (vec![], String::new());
    let order = db.byte_order();
    if let Some(cursor) = after {
        args = vec![cursor.created_at_us.into(), cursor.id.as_str().into()];
        filter = format!("AND (c.created_at, c.aid{order}) < ($1, $2)");
    }
    args.push(i64::from(limit).into());
    let last = args.len();
    let rest = format!(
        "{filter} AND NOT EXISTS (SELECT 1 FROM mesh_certificates AS n \
         WHERE n.aid = c.aid AND n.certificate IS NOT NULL AND n.number > c.number) \
         ORDER BY c.created_at DESC, c.aid{order} DESC LIMIT ${last}"
    );
    db.read(identities(&rest), args, identity).await
}

/// The operations after a number, in order.
pub async fn log(db: &Db, after: i64, limit: u32) -> Result<Vec<(i64, Entry)>, StoreError> {
    let rest = "WHERE number > $1 ORDER BY number LIMIT $2";
    let found: Vec<CertificateRow> = db.select(rest, vec![after.into(), i64::from(limit).into()]).await?;
    Ok(found.into_iter().map(|row| (row.number, row.into_entry())).collect())
}

/// The authority that certifies a domain.
pub(crate) struct Issuer {
    domain: String,
    fingerprint: String,
    created_at: Timestamp,
}

record! {
    Issuer, issuer in "mesh_issuers";
    key {
        domain: text;
    }
    fixed {
        fingerprint: text;
        created_at: time;
    }
    state {}
}

/// Stores which authority certifies a domain, once. Returns the fingerprint of the first.
pub async fn claim_issuer(db: &Db, domain: &str, fingerprint: &str, now: Timestamp) -> Result<String, StoreError> {
    let issuer = Issuer { domain: domain.to_owned(), fingerprint: fingerprint.to_owned(), created_at: now };
    let first = format!("ON CONFLICT (domain) DO UPDATE SET domain = excluded.domain RETURNING {}", Issuer::NAMES);
    let Statement { sql, args, .. } = record::insert(&issuer, vec![], &first);
    let stored = db.write(sql, args, Issuer::decode).await?.pop();
    stored.map(|first| first.fingerprint).ok_or_else(|| StoreError::corrupt("an issuer that was written is not there"))
}
