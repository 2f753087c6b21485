//! Every kustomization file can be read by kustomize 2.0.3, which Debian's kubectl contains, and by 5.x. Version 2.0.3 rejects
//! a file with a field that it does not know, so the files and the guide's example may use only fields that both versions read
//! in the same way. Rendering them is left to `cargo xtask test --kubernetes`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use ostler_testkit::manifests::{OVERLAYS, directory};
use serde_json::{Value, json};

use super::manifests::{items, parse, root, strings};

/// `patches` is not one of them: version 2.0.3 reads it as a list of files, later versions as a list of objects.
const FIELDS: [&str; 18] = [
    "apiVersion",
    "bases",
    "commonAnnotations",
    "commonLabels",
    "configMapGenerator",
    "configurations",
    "crds",
    "generatorOptions",
    "images",
    "kind",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "patchesJson6902",
    "patchesStrategicMerge",
    "resources",
    "secretGenerator",
    "vars",
];
/// The fields of the objects in these fields.
const FIELDS_WITHIN: [(&str, &[&str]); 5] = [
    ("configMapGenerator", &["behavior", "files", "literals", "name", "namespace"]),
    ("generatorOptions", &["annotations", "disableNameSuffixHash", "labels"]),
    ("images", &["digest", "name", "newName", "newTag"]),
    ("patchesJson6902", &["path", "target"]),
    ("secretGenerator", &["behavior", "files", "literals", "name", "namespace", "type"]),
];
const TARGET_FIELDS: [&str; 5] = ["group", "kind", "name", "namespace", "version"];

/// The fields that one of the two versions does not know.
fn unknown_fields(kustomization: &Value) -> Vec<String> {
    let mut unknown = unlisted("", kustomization, &FIELDS);
    for (field, listed) in FIELDS_WITHIN {
        let value = &kustomization[field];
        let place = format!("{field}.");
        for one in items(value).chain(value.is_object().then_some(value)) {
            unknown.extend(unlisted(&place, one, listed));
        }
    }
    for patch in items(&kustomization["patchesJson6902"]) {
        unknown.extend(unlisted("patchesJson6902.target.", &patch["target"], &TARGET_FIELDS));
    }
    unknown
}

fn unlisted(place: &str, object: &Value, listed: &[&str]) -> Vec<String> {
    let names = object.as_object().into_iter().flat_map(|object| object.keys());
    names.filter(|name| !listed.contains(&name.as_str())).map(|name| format!("{place}{name}")).collect()
}

/// The folders of `deploy/kubernetes` that have a kustomization file, each with its contents.
fn kustomizations() -> Vec<(PathBuf, Value)> {
    let entries = std::fs::read_dir(directory(&root())).unwrap().map(|entry| entry.unwrap().path());
    let read = |folder: PathBuf| {
        let text = std::fs::read_to_string(folder.join("kustomization.yaml")).ok()?;
        Some((folder, parse(&text).remove(0)))
    };
    let found: Vec<_> = entries.filter_map(read).collect();
    assert_eq!(found.len(), OVERLAYS.len() + 1, "the overlays and their base");
    found
}

#[test]
fn kustomizations_have_only_fields_that_kustomize_2_and_5_know() {
    for (folder, kustomization) in kustomizations() {
        assert_eq!(unknown_fields(&kustomization), [""; 0], "{}", folder.display());
        assert_eq!(kustomization["apiVersion"], "kustomize.config.k8s.io/v1beta1", "{}", folder.display());
    }
}

#[test]
fn the_kustomization_in_the_guide_has_only_fields_that_kustomize_2_and_5_know() {
    let guide = std::fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let blocks = guide.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let examples: Vec<&str> = blocks.filter(|block| block.contains("kind: Kustomization")).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let kustomization = parse(example).remove(0);
        assert_eq!(unknown_fields(&kustomization), [""; 0], "{example}");
        // The images of the overlays are named so that an overlay of the reader can replace them.
        let replaced: Vec<&Value> = items(&kustomization["images"]).map(|image| &image["name"]).collect();
        assert_eq!(replaced, ["ostler"], "{example}");
    }
}

#[test]
fn fields_of_later_versions_are_found() {
    let later = json!({
        "kind": "Kustomization", "resources": [], "components": [], "labels": [], "patches": [], "replacements": [],
        "configMapGenerator": [{"name": "a", "envs": ["b"]}, {"name": "c", "options": {}}],
        "generatorOptions": {"immutable": true},
        "images": [{"name": "a", "tagSuffix": "b"}],
        "patchesJson6902": [{"patch": "[]", "target": {"kind": "Job", "labelSelector": "a=b"}}],
    });
    let expected = [
        "components",
        "configMapGenerator.envs",
        "configMapGenerator.options",
        "generatorOptions.immutable",
        "images.tagSuffix",
        "labels",
        "patches",
        "patchesJson6902.patch",
        "patchesJson6902.target.labelSelector",
        "replacements",
    ];
    let mut found = unknown_fields(&later);
    found.sort();
    assert_eq!(found, expected);
}

/// Version 2.0.3 takes files as `resources` and patches, and folders as `bases`; it knows no patches inside of the file.
#[test]
fn kustomizations_name_every_file_of_their_folder_and_no_folder_as_a_resource() {
    for (folder, kustomization) in kustomizations() {
        let mut named: BTreeSet<String> = BTreeSet::new();
        for field in ["resources", "patchesStrategicMerge"] {
            named.extend(strings(&kustomization[field]));
        }
        let patches = items(&kustomization["patchesJson6902"]);
        named.extend(patches.map(|patch| patch["path"].as_str().unwrap().to_owned()));
        named.extend(items(&kustomization["configMapGenerator"]).flat_map(|one| strings(&one["files"])));
        named.insert("kustomization.yaml".into());
        assert_eq!(named, files_of(&folder), "{}", folder.display());
        for base in strings(&kustomization["bases"]) {
            assert!(folder.join(&base).join("kustomization.yaml").is_file(), "{}: {base}", folder.display());
        }
    }
}

fn files_of(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect()
}
