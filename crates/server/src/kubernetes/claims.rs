//! The volume claims of sessions: their manifest, and what is kept of each. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use ostler_protocol::{Failure, ids::SessionId, text::clip};
use serde_json::json;

use super::job_manifest::{MANAGED_BY, SESSION_LABEL};
use crate::config::KubernetesSection;

/// Where pods have the storage of their session.
pub const MOUNT_PATH: &str = "/storage";
const PHASE_CHARS_MAX: usize = 32;

/// What is known of a session's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    pub name: String,
    pub session: SessionId,
    /// The cluster's own word: `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// It was deleted, and exists for as long as a pod uses it.
    pub is_deleted: bool,
}

/// The claim for the storage of a session. One pod at a time writes to it.
pub fn claim(name: &str, session: SessionId, section: &KubernetesSection) -> Result<PersistentVolumeClaim, Failure> {
    let mut manifest = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {(MANAGED_BY.0): MANAGED_BY.1, (SESSION_LABEL): session.to_string()}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": section.storage_size}},
        },
    });
    // Without one, the cluster chooses its default.
    if let Some(class) = &section.storage_class {
        manifest["spec"]["storageClassName"] = class.as_str().into();
    }
    serde_json::from_value(manifest).map_err(Failure::internal)
}

/// `None` if the claim is none of a session.
pub fn claim_facts(claim: &PersistentVolumeClaim) -> Option<ClaimFacts> {
    let metadata = &claim.metadata;
    let session = metadata.labels.as_ref()?.get(SESSION_LABEL)?.parse().ok()?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    Some(ClaimFacts {
        name: metadata.name.clone()?,
        session,
        phase: clip(phase, PHASE_CHARS_MAX),
        is_deleted: metadata.deletion_timestamp.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn session() -> SessionId {
        format!("ses_{:032x}", 7).parse().unwrap()
    }

    fn facts(change: impl FnOnce(&mut Value)) -> Option<ClaimFacts> {
        let made = claim("claim", session(), &KubernetesSection::default()).unwrap();
        let mut object = serde_json::to_value(made).unwrap();
        change(&mut object);
        claim_facts(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_claim_is_of_one_pod_and_of_the_configured_size_and_class() {
        let default = claim("claim", session(), &KubernetesSection::default()).unwrap();
        let spec = serde_json::to_value(&default).unwrap()["spec"].clone();
        let expected = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        assert_eq!(spec, expected, "the class is the default of the cluster");
        let section = KubernetesSection {
            storage_class: Some("fast".into()),
            storage_size: "5Gi".into(),
            ..KubernetesSection::default()
        };
        let spec = serde_json::to_value(claim("claim", session(), &section).unwrap()).unwrap()["spec"].clone();
        assert_eq!(
            (&spec["storageClassName"], &spec["resources"]["requests"]["storage"]),
            (&json!("fast"), &json!("5Gi"))
        );
    }

    #[test]
    fn the_phase_of_a_claim_and_its_deletion_are_noticed() {
        let fresh = facts(|_| {}).unwrap();
        assert_eq!((fresh.session, fresh.phase.as_str(), fresh.is_deleted), (session(), "Pending", false));
        let bound = facts(|object| object["status"] = json!({"phase": "Bound"})).unwrap();
        assert_eq!(bound.phase, "Bound");
        let deleted = facts(|object| object["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z")).unwrap();
        assert!(deleted.is_deleted);
        assert_eq!(facts(|object| object["metadata"]["labels"] = json!({"ostler.dev/session": "x"})), None);
        assert_eq!(facts(|object| object["metadata"]["labels"] = Value::Null), None, "a claim of another program");
    }
}
