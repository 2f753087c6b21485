//! Storage as volume claims of a cluster.

use futures_util::future::{BoxFuture, FutureExt};
use ostler_protocol::{
    Failure, Rule,
    ids::SessionId,
    kernel::session_storage::{StorageKind, StoragePlace, claim_name, elsewhere},
};

use super::driver::StorageDriver;
use crate::{
    config::KubernetesSection,
    kubernetes::{
        ClusterError, Kubernetes,
        claims::{ClaimFacts, claim, claim_facts},
        job_manifest::SESSION_LABEL,
    },
};

/// The volume claims of a server's cluster.
pub(crate) struct ClaimDriver<'a> {
    pub kubernetes: &'a Kubernetes,
    pub section: &'a KubernetesSection,
}

/// A claim that cannot be made or found.
pub(crate) enum ClaimError {
    /// The call failed.
    Cluster(ClusterError),
    /// It cannot succeed with this session or these settings.
    Failed(Failure),
}

impl From<ClusterError> for ClaimError {
    fn from(error: ClusterError) -> Self {
        Self::Cluster(error)
    }
}

impl From<Failure> for ClaimError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl ClaimDriver<'_> {
    pub(crate) fn place_of(&self, session: SessionId) -> StoragePlace {
        let name = claim_name(&self.section.storage_prefix, session);
        StoragePlace::Claim { name, namespace: self.kubernetes.cluster.namespace().to_owned() }
    }

    /// Creates the claim, unless it exists. A claim that is being deleted cannot be used any more: the next one can be created
    /// when it is gone.
    pub(crate) async fn create(&self, session: SessionId, place: &StoragePlace) -> Result<ClaimFacts, ClaimError> {
        let name = self.name_of(place)?;
        let created = match self.kubernetes.cluster.create_claim(&claim(name, session, self.section)?).await {
            Ok(created) => claim_facts(&created),
            Err(ClusterError::Exists) => self.get(session, name).await?,
            Err(error) => return Err(error.into()),
        };
        let later = |message: &str| ClusterError::Later { after: None, message: message.to_owned() };
        match created {
            Some(facts) if facts.is_deleted => Err(later("the volume claim is being deleted").into()),
            Some(facts) => {
                self.kubernetes.cache.add_claim(facts.clone());
                Ok(facts)
            }
            None => Err(later("the volume claim was deleted concurrently").into()),
        }
    }

    /// The claim as the API server has it. `None` if there is none, or it is being deleted. Fails if the claim of this name is not
    /// labelled as that of the session.
    pub(crate) async fn find(
        &self,
        session: SessionId,
        place: &StoragePlace,
    ) -> Result<Option<ClaimFacts>, ClaimError> {
        let found = self.get(session, self.name_of(place)?).await?;
        match &found {
            Some(facts) => self.kubernetes.cache.add_claim(facts.clone()),
            None => self.kubernetes.cache.remove_claim(session),
        }
        Ok(found.filter(|facts| !facts.is_deleted))
    }

    /// Fails if the claim is not labelled as that of the session. It does not count as missing: it may have been restored without its
    /// labels, and a session whose storage is missing ends for good.
    async fn get(&self, session: SessionId, name: &str) -> Result<Option<ClaimFacts>, ClaimError> {
        let Some(found) = self.kubernetes.cluster.get_claim(name).await? else { return Ok(None) };
        match claim_facts(&found).filter(|facts| facts.session == session) {
            Some(facts) => Ok(Some(facts)),
            None => {
                let message = format!(
                    "the volume claim {name} does not have the label {SESSION_LABEL}={session}, so the session does not use it; \
                     claims that are restored need their labels"
                );
                Err(Failure::rule(Rule::ClusterCall, message).into())
            }
        }
    }

    /// The name of a claim in the namespace of this server.
    fn name_of<'p>(&self, place: &'p StoragePlace) -> Result<&'p str, Failure> {
        match place {
            StoragePlace::Claim { name, namespace } if namespace == self.kubernetes.cluster.namespace() => Ok(name),
            place => Err(elsewhere(place.kind())),
        }
    }
}

impl StorageDriver for ClaimDriver<'_> {
    fn kind(&self) -> StorageKind {
        StorageKind::Pvc
    }

    fn place(&self, session: SessionId) -> StoragePlace {
        self.place_of(session)
    }

    fn make<'a>(&'a self, session: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            match self.create(session, place).await {
                Ok(_) => Ok(()),
                Err(ClaimError::Cluster(error @ ClusterError::Refused(_))) => Err(Failure::from(error)),
                Err(ClaimError::Cluster(error)) => {
                    tracing::warn!(%error, %session, "a volume claim could not be created; its first runner creates it");
                    Ok(())
                }
                Err(ClaimError::Failed(failure)) => Err(failure),
            }
        }
        .boxed()
    }

    fn is_known(&self, session: SessionId) -> bool {
        self.kubernetes.cache.has_claim(session)
    }

    fn is_absent<'a>(&'a self, session: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<bool, Failure>> {
        async move {
            if self.is_known(session) {
                return Ok(false);
            }
            match self.find(session, place).await {
                Ok(found) => Ok(found.is_none()),
                Err(ClaimError::Cluster(error @ ClusterError::Refused(_))) => Err(Failure::from(error)),
                Err(ClaimError::Cluster(error)) => {
                    tracing::warn!(%error, %session, "it is unknown whether the session's volume claim exists");
                    Ok(false)
                }
                Err(ClaimError::Failed(failure)) => Err(failure),
            }
        }
        .boxed()
    }

    fn remove<'a>(&'a self, _: SessionId, place: &'a StoragePlace) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let name = self.name_of(place)?;
            self.kubernetes.cluster.delete_claim(name).await.map_err(Failure::from)
        }
        .boxed()
    }

    /// Claims that were deleted and are still used are left out: nothing more can be done about them.
    fn list(&self) -> Result<Vec<(SessionId, StoragePlace)>, Failure> {
        let namespace = self.kubernetes.cluster.namespace();
        let claims = self.kubernetes.cache.claims().into_iter().filter(|claim| !claim.is_deleted);
        let place = |name: String| StoragePlace::Claim { name, namespace: namespace.to_owned() };
        Ok(claims.map(|claim| (claim.session, place(claim.name))).collect())
    }

    /// Several installations may share a namespace.
    fn owns_unknown(&self) -> bool {
        false
    }

    fn phase(&self, session: SessionId) -> Option<String> {
        self.kubernetes.cache.claim(session).map(|claim| claim.phase)
    }
}
