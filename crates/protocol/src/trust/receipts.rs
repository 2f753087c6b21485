//! The consent ledger: for every answer of a person a receipt of who answered what, to which words in which language,
//! about which manifest, and when. A person's receipts form one chain, so that none can be changed, dropped or slipped
//! in; every holder of the receipts can check that, offline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    Failure, Rule, Timestamp,
    ids::{AgentId, ReceiptId, RelationId},
    json::value_of,
    trust::{
        i18n::{Language, ScopeText, scope_text},
        manifest::{Canonical, Manifest, Sensitivity},
        relations::{Answer, Relation, UseScope},
    },
};

/// What the first receipt of a ledger names as the one before it.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// A line of an exported ledger. A receipt repeats the texts of the scopes, and a manifest is smaller than this.
pub const RECEIPT_BYTES_MAX: usize = 1024 * 1024;

/// What a person did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Act)]
pub enum ReceiptAction {
    /// The relation began.
    Established,
    /// Answered to a manifest.
    Consented,
    /// Took grants back, or refused for good.
    Narrowed,
    /// A grant for a single call was used up.
    Used,
    /// The relation ended.
    Revoked,
    /// The server ended it, because the person or the agent is there no longer.
    Ended,
}

/// How a scope was answered once the act was done, and the words that the person had before their eyes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptScope {
    pub id: String,
    pub granted: bool,
    pub sensitivity: Option<Sensitivity>,
    pub once: bool,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    pub label: String,
    pub description: String,
}

/// One entry of a person's ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    pub id: ReceiptId,
    /// Whose ledger it is.
    pub user_id: String,
    /// 1, 2, 3 … in that ledger.
    pub seq: i64,
    pub relation_id: RelationId,
    pub agent_id: AgentId,
    pub agent_name: String,
    pub agent_owner_id: String,
    pub act: ReceiptAction,
    /// The manifest that the answers are about.
    pub manifest_version: i64,
    pub manifest_hash: String,
    /// The language of the words below.
    pub language: Language,
    /// Every scope that is answered now.
    pub scopes: Vec<ReceiptScope>,
    /// The scope whose grant was used up, and the call that did it.
    pub used_scope: Option<String>,
    pub call_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The hash of the receipt before it; zeros in the first.
    pub previous_hash: String,
    /// SHA-256 of this receipt without this field, as canonical JSON (RFC 8785), in hex.
    pub hash: String,
}

/// The end of a ledger: what the next receipt is chained to.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    pub seq: i64,
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, hash: GENESIS.into() }
    }
}

/// What a receipt contains besides the relation itself.
pub struct ReceiptNote {
    pub id: ReceiptId,
    pub act: ReceiptAction,
    pub used: Option<UseScope>,
}

/// The words that a person had before their eyes.
pub enum ConsentTexts<'a> {
    /// Those of the manifest that they answer to.
    Displayed { manifest: &'a Manifest, language: Language },
    /// Those that they were shown before. Of a scope that they had never answered, those of the current manifest.
    Recorded { before: &'a Receipt, manifest: Option<&'a Manifest> },
}

impl ConsentTexts<'_> {
    fn language(&self) -> Language {
        match self {
            Self::Displayed { language, .. } => *language,
            Self::Recorded { before, .. } => before.language,
        }
    }

    fn of(&self, id: &str) -> Option<ScopeText> {
        let (before, manifest) = match self {
            Self::Displayed { manifest, .. } => (None, Some(*manifest)),
            Self::Recorded { before, manifest } => (before.scopes.iter().find(|scope| scope.id == id), *manifest),
        };
        let recorded = before.map(|ReceiptScope { label, description, .. }| ScopeText {
            label: label.clone(),
            description: description.clone(),
        });
        let declared = || manifest?.permission_scopes.iter().find(|scope| scope.id == id);
        recorded.or_else(|| scope_text(declared()?, self.language()))
    }
}

impl Receipt {
    /// Writes down what a relation has become.
    pub fn write(head: &Head, note: ReceiptNote, relation: &Relation, texts: &ConsentTexts<'_>) -> Self {
        let ReceiptNote { id, act, used } = note;
        let answered = |(id, answer): (&String, &Answer)| {
            let ScopeText { label, description } = texts.of(id).unwrap_or_default();
            let (granted, sensitivity, once, expires_at) = match answer {
                Answer::Granted { sensitivity, once, expires_at } => (true, Some(*sensitivity), *once, *expires_at),
                Answer::Denied => (false, None, false, None),
            };
            ReceiptScope { id: id.clone(), granted, sensitivity, once, expires_at, label, description }
        };
        let (used_scope, call_id) = used.map(|UseScope { scope, call_id }| (scope, call_id)).unzip();
        let mut receipt = Self {
            id,
            user_id: relation.user_id.clone(),
            seq: head.seq + 1,
            relation_id: relation.relation_id,
            agent_id: relation.agent_id,
            agent_name: relation.agent_name.clone(),
            agent_owner_id: relation.agent_owner_id.clone(),
            act,
            manifest_version: relation.consented.version,
            manifest_hash: relation.consented.hash.clone(),
            language: texts.language(),
            scopes: relation.answers.iter().map(answered).collect(),
            used_scope,
            call_id,
            at: relation.updated_at,
            previous_hash: head.hash.clone(),
            hash: String::new(),
        };
        receipt.hash = hash_of(value_of(&receipt));
        receipt
    }

    pub fn head(&self) -> Head {
        Head { seq: self.seq, hash: self.hash.clone() }
    }
}

fn hash_of(mut receipt: Value) -> String {
    if let Value::Object(fields) = &mut receipt {
        fields.remove("hash");
    }
    Canonical::of(&receipt).hash
}

/// The first receipt that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// Counted from 1.
    pub line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub reason: String,
}

/// Checks ledgers line by line: of one person, or of several one after the other.
#[derive(Default)]
pub struct ReceiptVerifier {
    pub receipts: usize,
    heads: BTreeMap<String, Head>,
}

impl ReceiptVerifier {
    /// The ends of the ledgers seen so far, by person. A holder of one can verify later that nothing was cut off.
    pub fn heads(&self) -> &BTreeMap<String, Head> {
        &self.heads
    }

    pub fn take(&mut self, line: impl AsRef<[u8]>) -> Result<(), Broken> {
        self.receipts += 1;
        let broken = |id: Option<String>, reason: String| Broken { line: self.receipts, id, reason };
        let line = std::str::from_utf8(line.as_ref()).map_err(|why| broken(None, format!("it is not UTF-8: {why}")))?;
        let (receipt, hash) = read(line).map_err(|failure| broken(None, failure.message))?;
        let named = Some(receipt.id.to_string());
        let head = self.heads.entry(receipt.user_id.clone()).or_default();
        if receipt.seq != head.seq + 1 {
            let reason = format!("its number is {}, but {} is next", receipt.seq, head.seq + 1);
            return Err(broken(named, reason));
        }
        if receipt.previous_hash != head.hash {
            return Err(broken(named, "it does not follow the receipt before it".into()));
        }
        if receipt.hash != hash {
            return Err(broken(named, "its content does not match its hash".into()));
        }
        *head = receipt.head();
        Ok(())
    }
}

/// A line's receipt, and the hash of the line's content, fields unknown to us included.
fn read(line: &str) -> Result<(Receipt, String), Failure> {
    if line.len() > RECEIPT_BYTES_MAX {
        return Err(Failure::too_large(Rule::ReceiptSize, "a receipt", line.len(), RECEIPT_BYTES_MAX));
    }
    let (value, _) = Canonical::read("receipt", line)?;
    let receipt = crate::json::read_shape(Rule::Receipt, "receipt", line)?;
    Ok((receipt, hash_of(value)))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReceiptPage {
    pub receipts: Vec<Receipt>,
    /// `after_seq` of the next page.
    pub next_after_seq: Option<i64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListReceipts {
    /// Only receipts numbered above this.
    pub after_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::trust::{
        manifest::Checked,
        relations::{Consented, Relation},
    };

    fn seen() -> Checked {
        let manifest = serde_json::json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [],
            "permission_scopes": [{"id": "location:read", "label_i18n_key": "a.b", "sensitivity": "high"}]});
        Checked::read(&manifest.to_string()).unwrap()
    }

    fn relation(user_id: &str, revision: i64) -> Relation {
        let granted = Answer::Granted { sensitivity: Sensitivity::High, once: false, expires_at: None };
        Relation {
            relation_id: RelationId::new(Uuid::nil()),
            agent_id: AgentId::new(Uuid::nil()),
            agent_name: "helper".into(),
            agent_owner_id: "local".into(),
            user_id: user_id.into(),
            consented: Consented { version: 1, hash: seen().canonical.hash },
            answers: BTreeMap::from([("location:read".to_owned(), granted)]),
            revision,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
            revoked_at: None,
        }
    }

    fn ledger(user_id: &str, receipts: u128) -> Vec<String> {
        let seen = seen();
        let (mut head, mut lines) = (Head::default(), vec![]);
        for number in 1..=receipts {
            let relation = relation(user_id, number as i64);
            let id = ReceiptId::new(Uuid::from_u128(number));
            let note = ReceiptNote { id, act: ReceiptAction::Consented, used: None };
            let texts = ConsentTexts::Displayed { manifest: &seen.manifest, language: Language::Zh };
            let receipt = Receipt::write(&head, note, &relation, &texts);
            head = receipt.head();
            lines.push(serde_json::to_string(&receipt).unwrap());
        }
        lines
    }

    fn verify(lines: &[String]) -> Result<ReceiptVerifier, Broken> {
        let mut verifier = ReceiptVerifier::default();
        lines.iter().try_for_each(|line| verifier.take(line))?;
        Ok(verifier)
    }

    #[test]
    fn a_receipt_holds_the_words_that_were_shown() {
        let receipt: Receipt = serde_json::from_str(&ledger("local", 1)[0]).unwrap();
        assert_eq!((receipt.language, receipt.scopes[0].label.as_str()), (Language::Zh, "读取位置"));
        assert_eq!(receipt.previous_hash, GENESIS);
        assert_eq!((receipt.agent_name.as_str(), receipt.agent_owner_id.as_str()), ("helper", "local"));
    }

    #[test]
    fn a_later_receipt_keeps_the_texts_and_takes_current_ones_only_for_new_scopes() {
        let before: Receipt = serde_json::from_str(&ledger("local", 1)[0]).unwrap();
        let mut relation = relation("local", 2);
        for id in ["location:read", "clipboard:read", "gone:long_ago"] {
            relation.answers.insert(id.into(), Answer::Denied);
        }
        let now = serde_json::json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [],
            "permission_scopes": [{"id": "clipboard:read", "label_i18n_key": "a.b", "sensitivity": "medium"}]});
        let now = Checked::read(&now.to_string()).unwrap();
        let note = ReceiptNote { id: before.id, act: ReceiptAction::Narrowed, used: None };
        let texts = ConsentTexts::Recorded { before: &before, manifest: Some(&now.manifest) };
        let receipt = Receipt::write(&before.head(), note, &relation, &texts);
        let labels: Vec<_> = receipt.scopes.iter().map(|scope| scope.label.as_str()).collect();
        assert_eq!((receipt.language, labels), (Language::Zh, vec!["读取剪贴板", "", "读取位置"]));
    }

    #[test]
    fn untouched_ledgers_verify() {
        let lines = [ledger("local", 3), ledger("usr_1", 2)].concat();
        let verifier = verify(&lines).unwrap();
        assert_eq!((verifier.receipts, verifier.heads()["local"].seq, verifier.heads()["usr_1"].seq), (5, 3, 2));
    }

    #[test]
    fn the_first_receipt_that_does_not_fit_is_named() {
        let good = ledger("local", 4);
        let with = |change: &dyn Fn(&mut Vec<String>)| {
            let mut lines = good.clone();
            change(&mut lines);
            let broken = verify(&lines).err().expect("it does not fit");
            (broken.line, broken.id.is_some())
        };
        assert_eq!(with(&|lines| drop(lines.remove(1))), (2, true), "dropped");
        assert_eq!(with(&|lines| lines.swap(1, 2)), (2, true), "swapped");
        assert_eq!(with(&|lines| lines.insert(2, lines[1].clone())), (3, true), "listed twice");
        assert_eq!(with(&|lines| lines[2] = lines[2].replace("读取位置", "发送")), (3, true), "other words");
        assert_eq!(with(&|lines| lines[0] = lines[0].replacen('{', "{\"x\":1,", 1)), (1, true), "a field more");
        assert_eq!(with(&|lines| lines[0] = lines[0].replacen('{', "{\"seq\":9,", 1)), (1, false), "a key twice");
        assert_eq!(with(&|lines| lines[3] = lines[3].replace("high", "low")), (4, true), "less sensitive");
        assert_eq!(with(&|lines| lines.push("not a receipt".into())), (5, false));
    }

    #[test]
    fn no_byte_of_a_ledger_can_be_changed() {
        let lines = ledger("local", 2);
        for position in 0..lines[0].len() {
            let mut bytes = lines[0].clone().into_bytes();
            bytes[position] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(verify(&[changed, lines[1].clone()]).is_err(), "byte {position}");
        }
    }
}
