//! The rights that the server has in its namespace of a Kubernetes cluster. Every call to the cluster's API needs one of
//! them, and `deploy/kubernetes/base/access.yaml` grants exactly these: tests compare both with this table.

/// What may be done to one kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRight {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource, with its subresource (`pods/log`).
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
}

/// All rights. None of them reaches outside of the namespace.
///
/// Jobs are created and never changed: a name that exists already is a conflict, which the caller handles. Secrets are created
/// for Jobs, which own them and with which the cluster deletes them, and for provider profiles, where they are read, replaced
/// and deleted by name. No role can limit names that are not known before, so that writes are limited to the server's own
/// prefixes by an admission policy; nothing limits reads except that Secrets cannot be listed or watched. Claims
/// hold the storage of sessions: they are created, watched for their phase, read before a pod that needs them is created, and
/// deleted with the storage.
pub const CLUSTER_RIGHTS: &[ClusterRight] = &[
    ClusterRight { group: "batch", resource: "jobs", verbs: &["create", "get", "list", "watch", "delete"] },
    ClusterRight { group: "", resource: "pods", verbs: &["list", "watch"] },
    ClusterRight { group: "", resource: "pods/log", verbs: &["get"] },
    ClusterRight {
        group: "",
        resource: "persistentvolumeclaims",
        verbs: &["create", "get", "list", "watch", "delete"],
    },
    ClusterRight { group: "", resource: "secrets", verbs: &["create", "get", "update", "delete"] },
];

/// Whether the server may make a call with this verb.
pub fn is_granted(group: &str, resource: &str, verb: &str) -> bool {
    CLUSTER_RIGHTS.iter().any(|right| right.group == group && right.resource == resource && right.verbs.contains(&verb))
}

/// Each right with each of its verbs, as `(group, resource, verb)`.
pub fn all_granted() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    CLUSTER_RIGHTS.iter().flat_map(|right| right.verbs.iter().map(|verb| (right.group, right.resource, *verb)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_verbs_are_granted() {
        assert!(is_granted("batch", "jobs", "create") && is_granted("", "pods/log", "get"));
        assert!(!is_granted("", "jobs", "create"), "jobs are not in the core group");
        assert!(
            !is_granted("batch", "jobs", "patch")
                && !is_granted("", "secrets", "list")
                && !is_granted("", "secrets", "watch")
        );
        assert!(all_granted().all(|(group, resource, verb)| is_granted(group, resource, verb)));
    }
}
