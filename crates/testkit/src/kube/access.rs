//! The role of a server's account, and the policy of the Secrets that it may write, read from `deploy/kubernetes`. The API server
//! refuses this account every other call, so that each test of a server with it shows that they are enough.

use std::sync::LazyLock;

/// The namespace that every cluster has.
pub const NAMESPACE: &str = "default";
const ROLE: &str = include_str!("../../../../deploy/kubernetes/base/access.yaml");
const SECRET_NAMES: &str = include_str!("../../../../deploy/kubernetes/base/secret-names.yaml");
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

/// How the names of Secrets begin that the server's account may write.
pub(super) struct SecretNames {
    prefixes: Vec<String>,
}

impl Default for SecretNames {
    fn default() -> Self {
        Self::of_policy(SECRET_NAMES)
    }
}

impl SecretNames {
    /// Reads an admission policy whose prefixes are a list on one line. One that is written in another way allows nothing here.
    pub(crate) fn of_policy(text: &str) -> Self {
        let list = text.lines().find_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("expression: '["));
        let prefixes = list.map(|list| words(list.trim_end_matches('\''))).unwrap_or_default();
        Self { prefixes: prefixes.into_iter().map(str::to_owned).collect() }
    }

    pub(crate) fn allow(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }
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

    #[test]
    fn the_policy_of_secret_names_is_the_one_of_the_installation() {
        let names = SecretNames::default();
        assert!(names.allow("ostler-run-1") && names.allow("agentrun-v01-provider-codex"));
        assert!(!names.allow("ostler-keys") && !names.allow("agentrun-v01-run-1") && !names.allow(""));
        let rendered = "  variables:\n  - expression: '[\"a-\", \"b-\"]'\n    name: prefixes\n";
        let names = SecretNames::of_policy(rendered);
        assert!(names.allow("a-1") && names.allow("b-1") && !names.allow("ostler-run-1"));
        assert!(!SecretNames::of_policy("kind: Role").allow("a"));
    }
}
