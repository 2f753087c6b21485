//! The rights of the server in its namespace of the cluster. Each call of the API server names the right that it needs, and
//! `deploy/kubernetes/base/access.yaml` grants exactly these: tests compare the role with this list, and with the calls.
//!
//! Jobs are created and never changed: a name that exists already is a conflict, which the caller handles. Secrets are created
//! for Jobs, which own them and with which the cluster deletes them, and for provider profiles, where they are read, replaced
//! and deleted by name. No role can limit names that are not known before, so that writes are limited to the server's own
//! prefixes by an admission policy; nothing limits reads except that Secrets cannot be listed or watched. Claims hold the
//! storage of sessions: they are created, watched for their phase, read before a pod that needs them is created, and deleted
//! with the storage.

use std::fmt;

macro_rules! rights {
    ($($name:ident: $verb:literal $group:literal $resource:literal,)+) => {
        /// A verb on one kind of object, in the server's namespace only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Right {
            $($name),+
        }

        impl Right {
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            const fn parts(self) -> (&'static str, &'static str, &'static str) {
                match self {
                    $(Self::$name => ($verb, $group, $resource)),+
                }
            }
        }
    };
}

rights! {
    CreateJobs: "create" "batch" "jobs",
    GetJobs: "get" "batch" "jobs",
    ListJobs: "list" "batch" "jobs",
    WatchJobs: "watch" "batch" "jobs",
    DeleteJobs: "delete" "batch" "jobs",
    ListPods: "list" "" "pods",
    WatchPods: "watch" "" "pods",
    GetPodLogs: "get" "" "pods/log",
    CreateClaims: "create" "" "persistentvolumeclaims",
    GetClaims: "get" "" "persistentvolumeclaims",
    ListClaims: "list" "" "persistentvolumeclaims",
    WatchClaims: "watch" "" "persistentvolumeclaims",
    DeleteClaims: "delete" "" "persistentvolumeclaims",
    CreateSecrets: "create" "" "secrets",
    GetSecrets: "get" "" "secrets",
    UpdateSecrets: "update" "" "secrets",
    DeleteSecrets: "delete" "" "secrets",
}

impl Right {
    pub const fn verb(self) -> &'static str {
        self.parts().0
    }

    /// The API group; empty for the core group.
    pub const fn group(self) -> &'static str {
        self.parts().1
    }

    /// The resource, with its subresource (`pods/log`).
    pub const fn resource(self) -> &'static str {
        self.parts().2
    }
}

/// As messages name it: `create jobs.batch`, `get pods/log`.
impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, group, resource) = self.parts();
        match group {
            "" => write!(f, "{verb} {resource}"),
            group => write!(f, "{verb} {resource}.{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_right_is_listed_twice() {
        let parts: BTreeSet<_> = Right::ALL.iter().map(|right| right.parts()).collect();
        assert_eq!(parts.len(), Right::ALL.len());
    }

    #[test]
    fn jobs_are_not_changed_and_secrets_are_not_listed() {
        let of = |resource: &str| -> Vec<_> {
            Right::ALL.iter().filter(|right| right.resource() == resource).map(|right| right.verb()).collect()
        };
        assert_eq!(of("jobs"), ["create", "get", "list", "watch", "delete"]);
        assert_eq!(of("secrets"), ["create", "get", "update", "delete"]);
        assert_eq!(
            (Right::CreateJobs.to_string(), Right::GetPodLogs.to_string()),
            ("create jobs.batch".to_owned(), "get pods/log".to_owned())
        );
    }
}
