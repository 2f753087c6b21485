//! What a decision on a relation is made from. Each function is a single statement, so everything in its result was true at the
//! same moment: no write between two reads can make a person's ledger, their relations and the agent's manifest disagree.

use ostler_protocol::{
    ids::{AgentId, RelationId},
    trust::{
        agents::Agent,
        receipts::{Head, Receipt},
        relations::Relation,
    },
};

use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, Record, columns, columns_except, sql, text},
};

/// Number and hash of the last receipt of a person's ledger. `whose`: the person, as SQL.
fn head_columns(whose: &str) -> String {
    let last = |column| {
        format!(
            "(SELECT o.{column} FROM receipts AS o WHERE o.user_id = {whose} ORDER BY o.seq DESC LIMIT 1) AS head_{column}"
        )
    };
    format!("{}, {}", last("seq"), last("hash"))
}

fn read_head(row: &mut Reader<'_>) -> Result<Head, StoreError> {
    let (seq, hash) = (row.at("head_seq")?.opt_int()?, row.at("head_hash")?.opt_text()?);
    Ok(seq.zip(hash).map(|(seq, hash)| Head { seq, hash }).unwrap_or_default())
}

/// What a new relation of a person with an agent is decided from.
#[derive(Debug)]
pub struct GrantInputs {
    /// Without its manifest. Also one that was retired.
    pub agent: Option<Agent>,
    /// The number of the agent's current manifest, if it has one.
    pub manifest_version: Option<i64>,
    /// The relation these two have now.
    pub active: Option<Relation>,
    /// The last relation of these two that has ended.
    pub ended: Option<Relation>,
    /// Active relations of the person, with any agent.
    pub active_count: i64,
    pub head: Head,
}

pub async fn find_grant_inputs(db: &Db, user_id: &str, agent_id: AgentId) -> Result<GrantInputs, StoreError> {
    let sql = sql!(format!(
        "SELECT {agent}, {active}, {ended},
             (SELECT max(m.version) FROM manifests AS m WHERE m.agent_id = $1) AS manifest_version,
             (SELECT count(*) FROM relations AS c WHERE c.user_id = $2 AND c.revoked_at IS NULL) AS active_count, {head}
         FROM (SELECT 1) AS one
         LEFT JOIN agents AS a ON a.agent_id = $1
         LEFT JOIN relations AS r ON r.user_id = $2 AND r.agent_id = $1 AND r.revoked_at IS NULL
         LEFT JOIN (SELECT * FROM relations AS o WHERE o.user_id = $2 AND o.agent_id = $1 AND o.revoked_at IS NOT NULL
             ORDER BY o.revoked_at DESC, o.created_at DESC LIMIT 1) AS e ON TRUE",
        agent = columns_except::<Agent>("a", "capability_manifest"),
        active = columns::<Relation>("r"),
        ended = columns::<Relation>("e"),
        head = head_columns("$2"),
    ));
    let decode = |row: &mut Reader<'_>| {
        Ok(GrantInputs {
            agent: row.joined()?,
            active: row.joined()?,
            ended: row.joined()?,
            manifest_version: row.at("manifest_version")?.opt_int()?,
            active_count: row.at("active_count")?.int()?,
            head: read_head(row)?,
        })
    };
    let found = db.read_one(sql, vec![text(agent_id), user_id.into()], decode).await?;
    found.ok_or_else(|| StoreError::corrupt("a row of constants was not returned"))
}

/// The end of a person's ledger, and of the part that is about one relation.
#[derive(Debug)]
pub struct Ledger {
    pub head: Head,
    /// The number of the relation's last receipt. Receipts never change, so its text is read when it is needed: it may be as
    /// long as a manifest.
    last_receipt_seq: Option<i64>,
}

impl Ledger {
    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self { head: read_head(row)?, last_receipt_seq: row.at("last_receipt_seq")?.opt_int()? })
    }

    /// The last receipt of the relation.
    pub async fn last_receipt(&self, db: &Db, user_id: &str) -> Result<Option<Receipt>, StoreError> {
        let Some(seq) = self.last_receipt_seq else { return Ok(None) };
        let sql = "SELECT receipt FROM receipts WHERE user_id = $1 AND seq = $2";
        Ok(db.read_one(sql, vec![user_id.into(), seq.into()], |row| row.at("receipt")?.opt_json()).await?.flatten())
    }
}

/// The columns of [`RevocationInputs`], of the relation `t`.
fn recorded_columns() -> String {
    format!(
        "{}, {}, (SELECT max(l.seq) FROM receipts AS l WHERE l.relation_id = t.relation_id) AS last_receipt_seq",
        columns::<Relation>("t"),
        head_columns("t.user_id"),
    )
}

/// What a revocation is decided from. It reads no manifest: none can delay or prevent a revocation.
#[derive(Debug)]
pub struct RevocationInputs {
    pub relation: Relation,
    pub ledger: Ledger,
}

impl RevocationInputs {
    fn decode(row: &mut Reader<'_>) -> Result<Self, StoreError> {
        Ok(Self { relation: Relation::decode(row)?, ledger: Ledger::decode(row)? })
    }
}

pub async fn find_revocation_inputs(db: &Db, relation_id: RelationId) -> Result<Option<RevocationInputs>, StoreError> {
    let sql = sql!(format!("SELECT {} FROM relations AS t WHERE t.relation_id = $1", recorded_columns()));
    db.read_one(sql, vec![text(relation_id)], RevocationInputs::decode).await
}

/// What a decision under the agent's current manifest is made from.
#[derive(Debug)]
pub struct DecisionInputs {
    pub relation: Relation,
    pub ledger: Ledger,
    /// The number of the agent's current manifest, if it has one.
    pub manifest_version: Option<i64>,
    /// The receipt of the call that was asked for, if it has used a grant.
    pub call_receipt: Option<Receipt>,
}

pub async fn find_decision_inputs(
    db: &Db,
    relation_id: RelationId,
    call_id: Option<&str>,
) -> Result<Option<DecisionInputs>, StoreError> {
    let sql = sql!(format!(
        "SELECT {}, (SELECT max(m.version) FROM manifests AS m WHERE m.agent_id = t.agent_id) AS manifest_version,
             (SELECT u.receipt FROM receipts AS u WHERE u.relation_id = t.relation_id AND u.call_id = $1) AS call_receipt
         FROM relations AS t WHERE t.relation_id = $2",
        recorded_columns()
    ));
    let decode = |row: &mut Reader<'_>| {
        let RevocationInputs { relation, ledger } = RevocationInputs::decode(row)?;
        let manifest_version = row.at("manifest_version")?.opt_int()?;
        Ok(DecisionInputs { relation, ledger, manifest_version, call_receipt: row.at("call_receipt")?.opt_json()? })
    };
    db.read_one(sql, vec![call_id.map(str::to_owned).into(), text(relation_id)], decode).await
}
