//! Resource bundles: files of a repository that an agent finds in its workspace, as a run's `resourceBundleRef` names them. Only
//! shapes are judged here; whether the commit and the files exist is found out where the agent runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Failure, RawJson, Rule,
    json::read_shape,
    kernel::workspaces::{GitRef, GitSource},
};

/// The field of a run, as messages name it.
pub const RESOURCE_BUNDLE_FIELD: &str = "resourceBundleRef";
/// The only kind of a bundle.
pub const RESOURCE_BUNDLE_KIND: &str = "gitbundle";
/// Parts of the repository that a run may name.
pub const BUNDLES_MAX: usize = 16;
/// Bytes of a path in the repository or in the workspace.
pub const BUNDLE_PATH_BYTES_MAX: usize = 512;
/// The whole repository, as a path in it.
pub const WHOLE_REPOSITORY: &str = ".";
/// A folder of this name would be taken for the repository of the workspace.
const GIT_FOLDER: &str = ".git";

/// One part of the repository, and where the agent finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundlePart {
    /// A directory or file of the repository; `.` is all of it.
    pub subpath: String,
    /// The path in the workspace. It must not exist yet, except from an earlier bundle.
    pub target_path: String,
}

/// A bundle of a well-formed request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceBundle {
    pub source: GitRef,
    pub parts: Vec<BundlePart>,
}

/// The fields of a reference. A field that this server does not know is refused: an agent must not start without what it names.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BundleFields {
    kind: String,
    repo_url: Option<String>,
    bundles: Vec<BundlePart>,
    #[serde(rename = "ref")]
    git_ref: Option<String>,
    commit_id: Option<String>,
    credential_ref: Option<String>,
    prompt_refs: Option<Vec<serde_json::Value>>,
}

impl ResourceBundle {
    pub fn read(raw: &RawJson) -> Result<Self, Failure> {
        let fields: BundleFields = read_shape(Rule::ResourceBundleShape, RESOURCE_BUNDLE_FIELD, raw.as_str())?;
        if fields.kind != RESOURCE_BUNDLE_KIND {
            let message = format!("{RESOURCE_BUNDLE_FIELD}.kind must be {RESOURCE_BUNDLE_KIND}");
            return Err(Failure::invalid(Rule::ResourceBundleShape, message));
        }
        if fields.prompt_refs.is_some_and(|prompts| !prompts.is_empty()) {
            let message = "resourceBundleRef.promptRefs is not supported; put the prompt into the turn";
            return Err(Failure::invalid(Rule::ResourceBundlePrompts, message));
        }
        let source = GitSource {
            repo_url: fields.repo_url,
            // The commit decides, and the ref only tells where it was found.
            git_ref: fields.git_ref.filter(|_| fields.commit_id.is_none()),
            commit_id: fields.commit_id,
            credential_ref: fields.credential_ref,
        };
        let source = GitRef::read(RESOURCE_BUNDLE_FIELD, source)?;
        check_parts(&fields.bundles)?;
        Ok(Self { source, parts: fields.bundles })
    }
}

fn check_parts(parts: &[BundlePart]) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::invalid(Rule::ResourceBundlePath, message));
    if !(1..=BUNDLES_MAX).contains(&parts.len()) {
        return refused(format!("resourceBundleRef.bundles must have 1 to {BUNDLES_MAX} entries"));
    }
    let mut targets = BTreeSet::new();
    for part in parts {
        if part.subpath != WHOLE_REPOSITORY && !is_path(&part.subpath) {
            return refused("resourceBundleRef.bundles: subpath must be a path in the repository, or `.`".into());
        }
        if !is_path(&part.target_path) {
            let message = "resourceBundleRef.bundles: targetPath must be a path in the workspace, such as tools/lint";
            return refused(message.into());
        }
        targets.insert(part.target_path.as_str());
    }
    let within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    let overlap = targets.iter().any(|inner| targets.iter().any(|outer| within(inner, outer)));
    if targets.len() < parts.len() || overlap {
        return refused("resourceBundleRef.bundles: two targetPaths are the same, or one contains the other".into());
    }
    Ok(())
}

/// Whether a text is a plain relative path: no part leads out of its directory, into a `.git`, or means nothing.
fn is_path(text: &str) -> bool {
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..")
            && !name.eq_ignore_ascii_case(GIT_FOLDER)
            && !name.chars().any(char::is_control)
    };
    text.len() <= BUNDLE_PATH_BYTES_MAX && text.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kernel::workspaces::GitWant;

    fn read(change: impl FnOnce(&mut Value)) -> Result<ResourceBundle, String> {
        let mut body = json!({"kind": "gitbundle", "repoUrl": "https://git.example/a.git",
            "bundles": [{"subpath": "skills/review", "targetPath": ".agents/review"}]});
        change(&mut body);
        ResourceBundle::read(&RawJson::of(&body)).map_err(|failure| failure.rule_name().unwrap().to_owned())
    }

    fn with(field: &str, value: Value) -> Result<ResourceBundle, String> {
        read(|body| body[field] = value)
    }

    #[test]
    fn a_commit_decides_and_without_one_the_ref_or_the_default_branch_does() {
        let commit = "a".repeat(40);
        assert_eq!(read(|_| ()).unwrap().source.want, GitWant::Ref("HEAD".into()));
        assert_eq!(with("ref", json!("v1")).unwrap().source.want, GitWant::Ref("v1".into()));
        let both = read(|body| (body["ref"], body["commitId"]) = (json!("v1"), json!(commit))).unwrap();
        assert_eq!(both.source.want, GitWant::Commit(commit));
        assert_eq!(with("credentialRef", json!("forge")).unwrap().source.credential_ref.as_deref(), Some("forge"));
    }

    #[test]
    fn what_cannot_be_placed_is_refused_by_name() {
        for (field, value, rule) in [
            ("kind", json!("zip"), "resource-bundle-shape"),
            ("bundles", json!("all"), "resource-bundle-shape"),
            ("submodules", json!(true), "resource-bundle-shape"),
            ("bundles", json!([{"subpath": "a", "targetPath": "b", "mode": "link"}]), "resource-bundle-shape"),
            ("promptRefs", json!(["prompts/a.md"]), "resource-bundle-prompts"),
            ("repoUrl", json!("ext::sh -c id"), "workspace-git-url"),
            ("repoUrl", json!("https://me:secret@git.example/a"), "workspace-git-url-credential"),
            ("ref", json!("--upload-pack=x"), "workspace-git-ref"),
            ("commitId", json!("abc"), "workspace-git-commit-id"),
            ("bundles", json!([]), "resource-bundle-path"),
        ] {
            assert_eq!(with(field, value.clone()).unwrap_err(), rule, "{field}: {value}");
        }
        for empty in [json!(null), json!([])] {
            with("promptRefs", empty).unwrap();
        }
    }

    #[test]
    fn no_path_leads_out_of_the_workspace_or_into_its_repository() {
        let parts = |paths: &[(&str, &str)]| {
            let parts: Vec<_> = paths.iter().map(|(from, to)| json!({"subpath": from, "targetPath": to})).collect();
            with("bundles", json!(parts)).map(drop)
        };
        let long = "a".repeat(BUNDLE_PATH_BYTES_MAX + 1);
        for path in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".git", "a/.GIT/hooks", "a\nb", &long] {
            assert_eq!(parts(&[("a", path)]).unwrap_err(), "resource-bundle-path", "{path:?}");
            assert_eq!(parts(&[(path, "a")]).unwrap_err(), "resource-bundle-path", "{path:?}");
        }
        assert_eq!(parts(&[("a", ".")]).unwrap_err(), "resource-bundle-path", "the workspace itself is no target");
        assert_eq!(parts(&[("a", "x"), ("b", "x")]).unwrap_err(), "resource-bundle-path");
        assert_eq!(parts(&[("a", "x"), ("b", "x/y")]).unwrap_err(), "resource-bundle-path");
        parts(&[(".", "x"), ("b", "x-y"), ("c d", "é/f")]).unwrap();
        let many: Vec<_> = (0..=BUNDLES_MAX).map(|at| format!("t{at}")).collect();
        let many: Vec<_> = many.iter().map(|target| ("a", target.as_str())).collect();
        parts(&many[1..]).unwrap();
        assert_eq!(parts(&many).unwrap_err(), "resource-bundle-path");
    }
}
