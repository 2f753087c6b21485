//! What etcd is for the real API server: objects by name, one revision that counts every change, and the changes since
//! the last compaction.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::resources::ApiResource;

/// The characters of generated names, as the real server chooses them: no vowels, so that no words appear.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_CHARS: usize = 5;
/// More changes than this are compacted by themselves.
const HISTORY_CHANGES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    pub plural: &'static str,
    /// Empty for objects of the whole cluster.
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub(super) fn new(resource: &ApiResource, namespace: &str, name: &str) -> Self {
        Self { plural: resource.plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// One change of one object.
#[derive(Debug)]
pub(super) struct ObjectChange {
    pub revision: u64,
    pub key: ObjectKey,
    /// `None` if it was created.
    pub before: Option<Arc<Value>>,
    /// `None` if it was deleted.
    pub after: Option<Arc<Value>>,
}

#[derive(Default)]
pub(super) struct KubeStore {
    objects: BTreeMap<ObjectKey, Arc<Value>>,
    history: VecDeque<ObjectChange>,
    revision: u64,
    /// Changes up to this revision are no longer in the history.
    compacted: u64,
    generated: u64,
    /// How far the clock of the cluster is ahead of the machine's.
    ahead: SignedDuration,
}

impl KubeStore {
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    #[expect(clippy::disallowed_methods, reason = "the cluster's own clock; its processes run in real time")]
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now().checked_add(self.ahead).unwrap_or(Timestamp::MAX)
    }

    /// The time as objects carry it, in whole seconds.
    pub(super) fn now_text(&self) -> String {
        time_text(self.now())
    }

    /// Moves the cluster's clock forward: deadlines and times to live pass.
    pub(super) fn advance(&mut self, by: SignedDuration) {
        self.ahead = self.ahead.saturating_add(by);
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a resource in the order of their names. Without a namespace: those of all namespaces.
    pub(super) fn list<'a>(
        &'a self,
        resource: &ApiResource,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Value>)> {
        let plural = resource.plural;
        let first = ObjectKey::new(resource, namespace.unwrap_or_default(), "");
        let first = ObjectKey { plural, ..first };
        let rows = self.objects.range(first..);
        rows.take_while(move |(key, _)| key.plural == plural && namespace.is_none_or(|only| key.namespace == only))
    }

    /// The objects of a resource as they were at a revision, which must not have been compacted.
    pub(super) fn list_at(&self, resource: &ApiResource, revision: u64) -> BTreeMap<ObjectKey, Arc<Value>> {
        let mut objects: BTreeMap<_, _> =
            self.list(resource, None).map(|(key, object)| (key.clone(), object.clone())).collect();
        let newer = self.history.iter().rev().take_while(|change| change.revision > revision);
        for change in newer.filter(|change| change.key.plural == resource.plural) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), before.clone()),
                None => objects.remove(&change.key),
            };
        }
        objects
    }

    /// The changes after a revision, oldest first.
    pub(super) fn changes_after(&self, revision: u64) -> impl Iterator<Item = &ObjectChange> {
        let from = self.history.partition_point(|change| change.revision <= revision);
        self.history.range(from..)
    }

    /// Creates or replaces an object under the next revision.
    pub(super) fn put(&mut self, key: ObjectKey, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), object.clone());
        self.record(ObjectChange { revision: self.revision, key, before, after: Some(object.clone()) });
        object
    }

    /// Deletes an object. Returns its last state, under the revision of the deletion.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        let last = at_revision(&before, self.revision);
        self.record(ObjectChange { revision: self.revision, key: key.clone(), before: Some(before), after: None });
        Some(last)
    }

    /// Counts a change that concerns no object, as other writers of a cluster cause them all the time.
    pub(super) fn skip_revision(&mut self) {
        self.revision += 1;
    }

    /// Forgets every change up to now: older watches and lists expire.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
    }

    fn record(&mut self, change: ObjectChange) {
        self.history.push_back(change);
        if self.history.len() > HISTORY_CHANGES_MAX
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.revision;
        }
    }

    /// A new unique id. Its digits are not random, so that tests repeat.
    pub(super) fn next_uid(&mut self) -> String {
        let mixed = self.next_number();
        format!("{:08x}-{:04x}-4000-8000-{:012x}", mixed >> 32, (mixed >> 16) & 0xFFFF, self.generated)
    }

    /// The end of a generated name.
    pub(super) fn next_suffix(&mut self) -> String {
        let mut mixed = self.next_number();
        let base = SUFFIX_ALPHABET.len() as u64;
        let mut next = || {
            let index = usize::try_from(mixed % base).unwrap_or_default();
            mixed /= base;
            char::from(SUFFIX_ALPHABET[index])
        };
        (0..SUFFIX_CHARS).map(|_| next()).collect()
    }

    /// The next number of a small generator (SplitMix64).
    fn next_number(&mut self) -> u64 {
        self.generated += 1;
        let state = self.generated.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) ^ (mixed >> 31)
    }
}

/// An object under another version: a deletion reports the last state under the version of the deletion.
pub(super) fn at_revision(object: &Value, revision: u64) -> Arc<Value> {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
    Arc::new(object)
}

/// A time as objects carry it, in whole seconds.
pub(super) fn time_text(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// The time of a field. `None` if it has none.
pub(super) fn time_of(field: &Value) -> Option<Timestamp> {
    field.as_str()?.parse().ok()
}

/// A field as text; empty if it is missing.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The elements of a list field; none if it is missing.
pub(super) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
