//! Relations: the scopes that people grant agents, and the consent ledger.

use bytes::Bytes;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use ostler_protocol::{
    Failure,
    ids::RelationId,
    trust::{
        receipts::{ListReceipts, ReceiptPage},
        relations::{
            Answers, CreateRelation, ListRelations, PendingConsents, RelationChanges, RelationPage, RelationView,
            UseScope,
        },
    },
};

use crate::{client::Client, failures, path::Path, response};

impl Client {
    pub async fn create_relation(&self, relation: &CreateRelation) -> Result<RelationView, Failure> {
        self.post(Path::of(&["h2a", "relations"]), relation).await
    }

    pub async fn list_relations(&self, query: &ListRelations) -> Result<RelationPage, Failure> {
        self.get(Path::of(&["h2a", "relations"]).query(query)?).await
    }

    pub async fn get_relation(&self, relation_id: RelationId) -> Result<RelationView, Failure> {
        self.get(relation_path(relation_id, &[])).await
    }

    pub async fn update_relation(&self, relation_id: RelationId, answers: &Answers) -> Result<RelationView, Failure> {
        self.patch(relation_path(relation_id, &[]), answers).await
    }

    /// Revokes the relation with all its scopes.
    pub async fn revoke_relation(&self, relation_id: RelationId) -> Result<RelationView, Failure> {
        response::parse(&self.call(Method::DELETE, relation_path(relation_id, &[]), Bytes::new()).await?)
    }

    /// The changes since the caller last consented.
    pub async fn relation_changes(&self, relation_id: RelationId) -> Result<RelationChanges, Failure> {
        self.get(relation_path(relation_id, &["changes"])).await
    }

    /// Consents that wait for the caller's answer.
    pub async fn pending_consents(&self) -> Result<PendingConsents, Failure> {
        self.get(Path::fixed("/h2a/pending")).await
    }

    /// Uses a scope before a tool is called. A scope for a single call is then used up.
    pub async fn use_scope(&self, relation_id: RelationId, scope: &UseScope) -> Result<RelationView, Failure> {
        self.post(relation_path(relation_id, &["uses"]), scope).await
    }

    pub async fn list_receipts(&self, relation_id: RelationId, query: &ListReceipts) -> Result<ReceiptPage, Failure> {
        self.get(relation_path(relation_id, &["receipts"]).query(query)?).await
    }

    /// Streams the caller's whole consent ledger, one receipt per line, to `take`.
    pub async fn ledger(&self, mut take: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let path = Path::fixed("/h2a/receipts");
        let request = self.request(Method::GET, path, Bytes::new(), HeaderValue::from_static("application/jsonl"))?;
        let response = self.open(request).await?;
        if !response.status().is_success() {
            let (status, bytes) = response::collect(response).await?;
            return Err(response::problem(status, &bytes));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|error| failures::interrupted(&*error))?.into_data() {
                take(&data)?;
            }
        }
        Ok(())
    }
}

fn relation_path(relation_id: RelationId, rest: &[&str]) -> Path {
    let id = relation_id.to_string();
    Path::of(&[&["h2a", "relations", &id], rest].concat())
}
