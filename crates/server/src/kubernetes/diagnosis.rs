//! What `ostler doctor --kubernetes` looks at in the cluster. The role of a server does not grant all of these calls, because the
//! server itself does not make them: any account may review its own access, and the rest is left out if it is refused.

use k8s_openapi::api::{
    authorization::v1::SelfSubjectAccessReview,
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use ostler_protocol::{ids::SessionId, text::clip};
use serde_json::json;

use super::{
    claims::claim,
    cluster::{Cluster, ClusterError},
    rights::Right,
};
use crate::config::KubernetesSection;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Why a container waits whose image cannot be pulled.
const NOT_PULLED: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
const MESSAGE_CHARS_MAX: usize = 300;

/// How an image fared, as far as pods of runners show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePulls {
    /// Pods whose node has the image.
    pub pulled: usize,
    /// Why the node of a pod could not pull it.
    pub failure: Option<String>,
}

/// What claims show of their storage class, to an account that may not read storage classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimClass {
    /// The class that a new claim gets: the configured one, or the cluster's default.
    pub assigned: Option<String>,
    /// Claims of sessions that have this class and a volume.
    pub bound: usize,
}

impl Cluster {
    /// The rights that this account lacks.
    pub async fn missing_rights(&self) -> Result<Vec<Right>, ClusterError> {
        let mut missing = vec![];
        for right in Right::ALL {
            if !self.has_right(*right).await? {
                missing.push(*right);
            }
        }
        Ok(missing)
    }

    async fn has_right(&self, right: Right) -> Result<bool, ClusterError> {
        let (resource, subresource) = right.resource().split_once('/').unwrap_or((right.resource(), ""));
        let attributes = json!({"namespace": self.namespace(), "group": right.group(), "resource": resource,
            "subresource": subresource, "verb": right.verb()});
        let review = json!({"metadata": {}, "spec": {"resourceAttributes": attributes}});
        let review: SelfSubjectAccessReview =
            serde_json::from_value(review).map_err(|error| ClusterError::Refused(error.to_string()))?;
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client());
        let params = PostParams::default();
        let reviewed = async { reviews.create(&params, &review).await };
        let reviewed = self.call_ungranted("create", "selfsubjectaccessreviews", reviewed).await?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    }

    /// The storage class of this name, or the cluster's default. `None` if there is none.
    pub async fn find_storage_class(&self, name: Option<&str>) -> Result<Option<String>, ClusterError> {
        let classes: Api<StorageClass> = Api::all(self.client());
        let found = match name {
            Some(name) => self.call_ungranted("get", "storageclasses", async { classes.get_opt(name).await }).await?,
            None => {
                let params = ListParams::default();
                let listed = async { classes.list(&params).await };
                let listed = self.call_ungranted("list", "storageclasses", listed).await?;
                listed.items.into_iter().find(|class| {
                    let annotations = class.metadata.annotations.as_ref();
                    annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
                })
            }
        };
        Ok(found.and_then(|class| class.metadata.name))
    }

    /// The class of a claim that is validated and not stored, and how claims of this class fared.
    pub async fn claim_class(&self, section: &KubernetesSection) -> Result<ClaimClass, ClusterError> {
        let name = format!("{}-doctor", section.storage_prefix);
        let trial =
            claim(&name, SessionId::unset(), section).map_err(|failure| ClusterError::Refused(failure.message))?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client(), self.namespace());
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let validated = async { claims.create(&params, &trial).await };
        let validated = self.call(Right::CreateClaims, validated).await?;
        let class_of = |claim: &PersistentVolumeClaim| claim.spec.as_ref()?.storage_class_name.clone();
        let assigned = class_of(&validated).filter(|class| !class.is_empty());
        let is_bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        };
        let listed = self.list::<PersistentVolumeClaim>(None).await?;
        let bound = listed.items.iter().filter(|claim| is_bound(claim) && class_of(claim) == assigned).count();
        Ok(ClaimClass { assigned, bound })
    }

    /// How an image fared in the pods of runners that are still there.
    pub async fn image_pulls(&self, image: &str) -> Result<ImagePulls, ClusterError> {
        let pods = self.list::<Pod>(None).await?;
        Ok(pods_pulls(&pods.items, image))
    }
}

fn pods_pulls(pods: &[Pod], image: &str) -> ImagePulls {
    let mut pulls = ImagePulls::default();
    for pod in pods {
        let uses_it =
            pod.spec.as_ref().is_some_and(|spec| spec.containers.iter().any(|one| one.image.as_deref() == Some(image)));
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        for status in statuses.filter(|_| uses_it) {
            pulls.pulled += usize::from(!status.image_id.is_empty());
            let Some(waiting) = status.state.as_ref().and_then(|state| state.waiting.as_ref()) else { continue };
            let reason = waiting.reason.as_deref().unwrap_or_default();
            if NOT_PULLED.contains(&reason) {
                let message = waiting.message.as_deref().unwrap_or(reason);
                pulls.failure = Some(clip(message, MESSAGE_CHARS_MAX));
            }
        }
    }
    pulls
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(image: &str, image_id: &str, state: Value) -> Pod {
        let status = json!({"name": "runner", "image": image, "imageID": image_id, "ready": false, "restartCount": 0,
            "state": state});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "runner", "image": image}]},
            "status": {"containerStatuses": [status]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pods_show_whether_an_image_can_be_pulled() {
        let pulling = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        let pods = [
            pod("a", "sha256:1", json!({"running": {}})),
            pod("b", "", pulling),
            pod("a", "", json!({"waiting": {"reason": "ContainerCreating"}})),
        ];
        assert_eq!(pods_pulls(&pods, "a"), ImagePulls { pulled: 1, failure: None });
        assert_eq!(pods_pulls(&pods, "b"), ImagePulls { pulled: 0, failure: Some("no such image".into()) });
        assert_eq!(pods_pulls(&pods, "c"), ImagePulls::default());
    }
}
