//! The rendered overlays, read from their files.

use std::path::PathBuf;

use ostler_testkit::manifests::{OVERLAYS, SINGLE_FILES, directory, rendered};
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value, json};

pub(crate) fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this test")).join("../..")
}

pub(crate) struct Overlay {
    pub name: &'static str,
    pub manifests: Vec<Value>,
}

/// Pods that a manifest makes.
pub(crate) struct Pod<'a> {
    /// For messages: the overlay, and the kind and name of the manifest.
    pub owner: String,
    pub labels: &'a Value,
    pub spec: &'a Value,
}

impl Overlay {
    pub(crate) fn read(name: &'static str) -> Self {
        let text = std::fs::read_to_string(rendered(&root(), name)).unwrap();
        let manifests = parse(&text);
        assert!(!manifests.is_empty(), "{name}");
        Self { name, manifests }
    }

    pub(crate) fn all() -> Vec<Self> {
        OVERLAYS.into_iter().map(Self::read).collect()
    }

    /// A file of `deploy/kubernetes` that is applied by itself.
    pub(crate) fn of_file(name: &'static str) -> Self {
        let text = std::fs::read_to_string(directory(&root()).join(name)).unwrap();
        let manifests = parse(&text);
        assert!(!manifests.is_empty(), "{name}");
        Self { name, manifests }
    }

    /// All files that are applied by themselves.
    pub(crate) fn single_files() -> Vec<Self> {
        SINGLE_FILES.into_iter().map(Self::of_file).collect()
    }

    pub(crate) fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.manifests.iter().filter(move |manifest| manifest["kind"] == kind)
    }

    pub(crate) fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of(kind).find(|manifest| manifest["metadata"]["name"] == name)
    }

    pub(crate) fn pods(&self) -> Vec<Pod<'_>> {
        let mut pods = vec![];
        for manifest in &self.manifests {
            let template = match &manifest["spec"]["template"] {
                template if template.is_object() => template,
                _ if manifest["kind"] == "Pod" => manifest,
                _ => continue,
            };
            let owner = format!("{}: {} {}", self.name, manifest["kind"], manifest["metadata"]["name"]);
            pods.push(Pod { owner, labels: &template["metadata"]["labels"], spec: &template["spec"] });
        }
        pods
    }
}

impl Pod<'_> {
    pub(crate) fn containers(&self) -> impl Iterator<Item = &Value> {
        items(&self.spec["initContainers"]).chain(items(&self.spec["containers"]))
    }

    pub(crate) fn volumes(&self) -> impl Iterator<Item = &Value> {
        items(&self.spec["volumes"])
    }
}

/// The elements of a list; none if there is no list.
pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The elements of a list of texts.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    items(list).map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// The labels that every runner's pod has.
pub(crate) fn runner_labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "ostler", "ostler.dev/job": "job_1", "ostler.dev/run": "run_1"})
}

/// Whether a selector selects pods with these labels.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let equal = selector["matchLabels"].as_object();
    let has_equal = equal.into_iter().flatten().all(|(key, value)| labels[key] == *value);
    has_equal
        && items(&selector["matchExpressions"]).all(|expression| {
            let label = &labels[expression["key"].as_str().unwrap()];
            match expression["operator"].as_str().unwrap() {
                "In" => items(&expression["values"]).any(|value| value == label),
                "Exists" => !label.is_null(),
                other => panic!("this test does not know the operator {other}"),
            }
        })
}

/// The documents of a YAML file.
pub(crate) fn parse(text: &str) -> Vec<Value> {
    let mut events = Parser::new_from_str(text).map(|event| event.expect("the file is YAML").0);
    let mut documents = vec![];
    while let Some(event) = events.next() {
        if let Event::DocumentStart(_) = event {
            let first = events.next().expect("a document has a value");
            documents.push(value(first, &mut events));
        }
    }
    documents
}

fn value<'a>(event: Event<'a>, events: &mut impl Iterator<Item = Event<'a>>) -> Value {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, 0, None) => plain(&text),
        Event::Scalar(text, _, 0, None) => Value::String(text.into_owned()),
        Event::SequenceStart(0, None) => {
            let mut list = vec![];
            loop {
                match events.next().expect("a list ends") {
                    Event::SequenceEnd => return Value::Array(list),
                    item => list.push(value(item, events)),
                }
            }
        }
        Event::MappingStart(0, None) => {
            let mut map = Map::new();
            loop {
                let key = match events.next().expect("a mapping ends") {
                    Event::MappingEnd => return Value::Object(map),
                    Event::Scalar(key, ..) => key.into_owned(),
                    other => panic!("a key is a text, not {other:?}"),
                };
                let first = events.next().expect("a key has a value");
                let member = value(first, events);
                assert!(map.insert(key.clone(), member).is_none(), "{key} is given twice");
            }
        }
        other => panic!("this test does not know {other:?}"),
    }
}

/// A text without quotes, by the rules of JSON.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => text.parse::<i64>().map_or_else(|_| Value::String(text.to_owned()), Value::from),
    }
}

#[test]
fn yaml_is_read_as_json() {
    let text = "# comment\na: 1\nb: \"1\"\nc: [x, true]\nd:\n  e: {}\nf: |\n  two\n  lines\n---\nkind: Job\n";
    let expected = json!({"a": 1, "b": "1", "c": ["x", true], "d": {"e": {}}, "f": "two\nlines\n"});
    assert_eq!(parse(text), [expected, json!({"kind": "Job"})]);
}
