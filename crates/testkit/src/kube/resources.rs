//! The resources that the API server has, and how a path names one of them.

use serde_json::{Value, json};

/// One kind of object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ApiResource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub is_namespaced: bool,
    pub has_status: bool,
    /// Whether `metadata.generation` counts changes of the spec.
    pub has_generation: bool,
    /// `false` for reviews, which are answered and not stored.
    pub is_stored: bool,
}

const fn core(plural: &'static str, kind: &'static str) -> ApiResource {
    ApiResource {
        group: "",
        version: "v1",
        plural,
        kind,
        is_namespaced: true,
        has_status: true,
        has_generation: false,
        is_stored: true,
    }
}

pub(super) static NAMESPACES: ApiResource = ApiResource { is_namespaced: false, ..core("namespaces", "Namespace") };
pub(super) static NODES: ApiResource = ApiResource { is_namespaced: false, ..core("nodes", "Node") };
pub(super) static PODS: ApiResource = ApiResource { has_generation: true, ..core("pods", "Pod") };
pub(super) static SECRETS: ApiResource = ApiResource { has_status: false, ..core("secrets", "Secret") };
pub(super) static CLAIMS: ApiResource = core("persistentvolumeclaims", "PersistentVolumeClaim");
pub(super) static EVENTS: ApiResource = ApiResource { has_status: false, ..core("events", "Event") };
pub(super) static JOBS: ApiResource = ApiResource { group: "batch", has_generation: true, ..core("jobs", "Job") };
pub(super) static STORAGE_CLASSES: ApiResource = ApiResource {
    group: "storage.k8s.io",
    is_namespaced: false,
    has_status: false,
    ..core("storageclasses", "StorageClass")
};
static ACCESS_REVIEWS: ApiResource = ApiResource {
    group: "authorization.k8s.io",
    is_namespaced: false,
    has_status: false,
    is_stored: false,
    ..core("selfsubjectaccessreviews", "SelfSubjectAccessReview")
};

static ALL: [&ApiResource; 9] =
    [&NAMESPACES, &NODES, &PODS, &SECRETS, &CLAIMS, &EVENTS, &JOBS, &STORAGE_CLASSES, &ACCESS_REVIEWS];
const GROUPS: [&str; 3] = ["authorization.k8s.io", "batch", "storage.k8s.io"];
const VERSION: &str = "v1";
const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

impl ApiResource {
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The name in messages: `jobs.batch`, or `pods` in the core group.
    pub(super) fn qualified(&self, name: &str) -> String {
        if self.group.is_empty() { name.to_owned() } else { format!("{name}.{}", self.group) }
    }
}

/// What a path names: a collection, an object or a subresource.
#[derive(Clone, Debug)]
pub(super) struct ApiTarget {
    pub resource: &'static ApiResource,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl ApiTarget {
    /// `None` if the server has no such resource.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", VERSION, rest @ ..] => ("", rest),
            ["apis", group, VERSION, rest @ ..] => (*group, rest),
            _ => return None,
        };
        if let ["namespaces", namespace, plural, rest @ ..] = rest
            && let Some(resource) = find(group, plural).filter(|resource| resource.is_namespaced)
        {
            return Self::of(resource, Some((*namespace).to_owned()), rest);
        }
        let (plural, rest) = rest.split_first()?;
        Self::of(find(group, plural)?, None, rest)
    }

    fn of(resource: &'static ApiResource, namespace: Option<String>, rest: &[&str]) -> Option<Self> {
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some((*name).to_owned()), None),
            [name, "status"] if resource.has_status => (Some((*name).to_owned()), Some("status".to_owned())),
            [name, "log"] if resource.plural == PODS.plural => (Some((*name).to_owned()), Some("log".to_owned())),
            _ => return None,
        };
        Some(Self { resource, namespace, name, subresource })
    }

    /// How calls are counted: `pods`, `pods/log`.
    pub(super) fn counted_as(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.resource.plural),
            None => self.resource.plural.to_owned(),
        }
    }
}

fn find(group: &str, plural: &str) -> Option<&'static ApiResource> {
    ALL.iter().copied().find(|resource| resource.group == group && resource.plural == plural)
}

pub(super) fn by_plural(plural: &str) -> Option<&'static ApiResource> {
    ALL.iter().copied().find(|resource| resource.plural == plural)
}

/// What the server reports of itself under this path. `None` if the path is not one of discovery.
pub(super) fn discovery(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.4+testkit", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64"
        })),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": [VERSION], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let groups: Vec<Value> = GROUPS.iter().map(|group| api_group(group)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", VERSION] => Some(resource_list("")),
        ["apis", group, VERSION] if GROUPS.contains(group) => Some(resource_list(group)),
        _ => None,
    }
}

fn api_group(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{VERSION}"), "version": VERSION});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resource_list(group: &str) -> Value {
    let mut resources = vec![];
    for resource in ALL.iter().filter(|resource| resource.group == group) {
        let row = |name: String, singular: String, verbs: &[&str]| {
            json!({
                "name": name, "singularName": singular, "namespaced": resource.is_namespaced, "kind": resource.kind,
                "verbs": verbs
            })
        };
        let verbs = if resource.is_stored { &VERBS[..] } else { &["create"][..] };
        resources.push(row(resource.plural.to_owned(), resource.kind.to_lowercase(), verbs));
        if resource.has_status {
            resources.push(row(format!("{}/status", resource.plural), String::new(), &["get", "patch", "update"]));
        }
        if resource.plural == PODS.plural {
            resources.push(row("pods/log".to_owned(), String::new(), &["get"]));
        }
    }
    let version = if group.is_empty() { VERSION.to_owned() } else { format!("{group}/{VERSION}") };
    json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_collection_an_object_or_a_subresource() {
        let target = ApiTarget::parse("/apis/batch/v1/namespaces/default/jobs/a/status").unwrap();
        assert_eq!((target.resource, target.namespace.as_deref()), (&JOBS, Some("default")));
        assert_eq!((target.name.as_deref(), target.counted_as().as_str()), (Some("a"), "jobs/status"));
        let target = ApiTarget::parse("/api/v1/namespaces/default").unwrap();
        assert_eq!((target.resource, target.name.as_deref()), (&NAMESPACES, Some("default")));
        let target = ApiTarget::parse("/api/v1/namespaces/default/status").unwrap();
        assert_eq!(target.counted_as(), "namespaces/status");
        let target = ApiTarget::parse("/api/v1/pods").unwrap();
        assert_eq!((target.resource, target.namespace), (&PODS, None));
        assert!(ApiTarget::parse("/api/v1/widgets").is_none());
        assert!(ApiTarget::parse("/api/v1/namespaces/default/jobs").is_none(), "jobs are in another group");
    }
}
