//! The role of a server's account, read from `deploy/kubernetes`. The API server refuses this account every other call, so that
//! each test of a server with it shows that the role is enough.

use std::sync::LazyLock;

/// The namespace that every cluster has.
pub const NAMESPACE: &str = "default";
const ROLE: &str = include_str!("../../../../deploy/kubernetes/base/access.yaml");
/// The account's name in messages.
pub(super) const SERVER_ACCOUNT: &str = "system:serviceaccount:default:ostler";

/// Each rule grants all of its verbs on all of its resources.
#[derive(Default)]
struct RoleRule<'a> {
    groups: Vec<&'a str>,
    resources: Vec<&'a str>,
    verbs: Vec<&'a str>,
}

/// Whether the server's account may use a verb on a resource (`jobs`, `pods/log`). The role is one of [`NAMESPACE`].
pub(super) fn is_granted(verb: &str, group: &str, resource: &str, namespace: Option<&str>) -> bool {
    static RULES: LazyLock<Vec<RoleRule<'static>>> = LazyLock::new(|| rules(ROLE));
    let grants = |rule: &RoleRule<'_>| {
        rule.groups.contains(&group) && rule.resources.contains(&resource) && rule.verbs.contains(&verb)
    };
    namespace == Some(NAMESPACE) && RULES.iter().any(grants)
}

/// The rules of a role whose lists are each on one line. Rules that are written in another way grant nothing here.
fn rules(text: &str) -> Vec<RoleRule<'_>> {
    let mut rules: Vec<RoleRule<'_>> = vec![];
    for line in text.lines() {
        if let Some(groups) = line.strip_prefix("- apiGroups: ") {
            rules.push(RoleRule { groups: words(groups), ..RoleRule::default() });
        }
        let Some(rule) = rules.last_mut() else { continue };
        if let Some(resources) = line.strip_prefix("  resources: ") {
            rule.resources = words(resources);
        }
        if let Some(verbs) = line.strip_prefix("  verbs: ") {
            rule.verbs = words(verbs);
        }
    }
    rules
}

/// The elements of a list such as `[get, list]`.
fn words(list: &str) -> Vec<&str> {
    list.trim_matches(['[', ']']).split(',').map(|word| word.trim().trim_matches('"')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_is_the_one_of_the_installation() {
        let may = |verb: &str, group: &str, resource: &str| is_granted(verb, group, resource, Some(NAMESPACE));
        assert!(may("create", "batch", "jobs") && may("get", "", "pods/log") && may("update", "", "secrets"));
        assert!(!may("list", "", "secrets") && !may("patch", "batch", "jobs"));
        assert!(!may("create", "", "jobs"), "jobs are not in the core group");
        assert!(!is_granted("create", "batch", "jobs", Some("other")) && !is_granted("list", "batch", "jobs", None));
    }
}
