//! Relations: what people grant agents, and the ledger of it.

use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use ostler_protocol::{
    Failure,
    ids::RelationId,
    receipts::{ListReceipts, ReceiptPage},
    relations::{
        Answers, CreateRelation, ListRelations, PendingConsents, RelationChanges, RelationPage, RelationView, UseScope,
    },
};

use crate::{Client, answer, path::Path};

impl Client {
    pub async fn create_relation(&self, asked: &CreateRelation) -> Result<RelationView, Failure> {
        self.post(Path::of(&["h2a", "relations"]), asked).await
    }

    pub async fn list_relations(&self, query: &ListRelations) -> Result<RelationPage, Failure> {
        self.get(Path::of(&["h2a", "relations"]).query(query)?).await
    }

    pub async fn get_relation(&self, relation_id: RelationId) -> Result<RelationView, Failure> {
        self.get(relation(relation_id, &[])).await
    }

    pub async fn update_relation(&self, relation_id: RelationId, asked: &Answers) -> Result<RelationView, Failure> {
        self.patch(relation(relation_id, &[]), asked).await
    }

    /// Ends it, with everything granted in it.
    pub async fn revoke_relation(&self, relation_id: RelationId) -> Result<RelationView, Failure> {
        answer::parse(&self.call(Method::DELETE, relation(relation_id, &[]), Bytes::new()).await?)
    }

    /// What has changed since the caller last consented.
    pub async fn relation_changes(&self, relation_id: RelationId) -> Result<RelationChanges, Failure> {
        self.get(relation(relation_id, &["changes"])).await
    }

    /// What waits for the caller's answer.
    pub async fn pending_consents(&self) -> Result<PendingConsents, Failure> {
        self.get(Path::fixed("/h2a/pending")).await
    }

    /// Before a tool is called under a grant: one for a single call is used up by it.
    pub async fn use_scope(&self, relation_id: RelationId, asked: &UseScope) -> Result<RelationView, Failure> {
        self.post(relation(relation_id, &["uses"]), asked).await
    }

    pub async fn list_receipts(&self, relation_id: RelationId, query: &ListReceipts) -> Result<ReceiptPage, Failure> {
        self.get(relation(relation_id, &["receipts"]).query(query)?).await
    }

    /// The caller's whole consent ledger, a receipt per line, handed on as it comes.
    pub async fn ledger(&self, mut take: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let path = Path::fixed("/h2a/receipts");
        let request = self.request(Method::GET, path, Bytes::new(), HeaderValue::from_static("application/jsonl"))?;
        let response = self.open(request).await?;
        if !response.status().is_success() {
            let (status, bytes) = answer::collect(response).await?;
            return Err(answer::problem(status, &bytes));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|error| answer::interrupted(&*error))?.into_data() {
                take(&data)?;
            }
        }
        Ok(())
    }
}

fn relation(relation_id: RelationId, rest: &[&str]) -> Path {
    let id = relation_id.to_string();
    Path::of(&[&["h2a", "relations", &id], rest].concat())
}
