//! What changed from one manifest to the next, and whether people must consent again.
//!
//! Tools and scopes are compared by their names, never by their places. The verdict is the server's alone: clients
//! receive it, and do not judge for themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Checked, Manifest, Scope, Sensitivity, Tool,
    changes::Change,
    compare::{self, Budget, ToolSchema},
    extensions::FLAGS,
    rules::{DiffRule, Effect},
};

use crate::json::value_of;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ManifestDiff {
    /// Whether people who consented to the old manifest must consent again.
    pub breaking: bool,
    pub changes: Vec<Change>,
    /// The scopes that need their consent again, sorted.
    pub scopes_requiring_reauth: Vec<String>,
}

impl ManifestDiff {
    /// Both in one: what people who consented to either of two manifests must answer. Of the other only what breaks is
    /// of interest, and only once.
    pub fn and(mut self, other: &Self) -> Self {
        let is_new = |change: &&Change| change.breaking && !self.changes.contains(change);
        let more: Vec<Change> = other.changes.iter().filter(is_new).cloned().collect();
        self.changes.extend(more);
        Self::of(self.changes)
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.changes.iter().map(Change::bytes).sum::<usize>()
    }

    fn of(changes: Vec<Change>) -> Self {
        let breaking = || changes.iter().filter(|change| change.breaking);
        let scopes: BTreeSet<_> = breaking().filter_map(|change| change.scope.clone()).collect();
        Self { breaking: breaking().next().is_some(), scopes_requiring_reauth: scopes.into_iter().collect(), changes }
    }
}

/// Compares a manifest with the one before it. Where there was none, every scope is new.
pub fn diff(old: Option<&Checked>, new: &Checked) -> ManifestDiff {
    static NOTHING: Manifest = Manifest::NOTHING;
    let mut walk = ManifestWalk { old: old.map_or(&NOTHING, |old| &old.manifest), new: &new.manifest, changes: vec![] };
    walk.scopes();
    walk.tools();
    if let Some(old) = old {
        walk.flags();
        walk.changes.extend(old.extensions.changes(&new.extensions));
    }
    ManifestDiff::of(walk.changes)
}

struct ManifestWalk<'a> {
    old: &'a Manifest,
    new: &'a Manifest,
    changes: Vec<Change>,
}

/// An item of a manifest's list, with its index.
type PlacedItem<'a, T> = (usize, &'a T);

fn by_name<'a, T>(list: &'a [T], name: impl Fn(&'a T) -> &'a str) -> BTreeMap<&'a str, PlacedItem<'a, T>> {
    list.iter().enumerate().map(|(index, item)| (name(item), (index, item))).collect()
}

impl<'a> ManifestWalk<'a> {
    fn report(
        &mut self,
        rule: DiffRule,
        pointer: String,
        old: impl Into<Value>,
        new: impl Into<Value>,
        scope: Option<&str>,
    ) {
        let breaking = rule.row().effect == Effect::Breaks;
        let (old, new, scope) = (old.into(), new.into(), scope.map(str::to_owned));
        self.changes.push(Change { rule, pointer, old, new, breaking, scope, tool: None });
    }

    fn scopes(&mut self) {
        let id = |scope: &'a Scope| scope.id.as_str();
        let (old, new) = (by_name(&self.old.permission_scopes, id), by_name(&self.new.permission_scopes, id));
        for (id, (index, scope)) in &new {
            let at = format!("/permission_scopes/{index}");
            match old.get(id) {
                None => self.report(DiffRule::ScopeAdded, at, Value::Null, value(scope), Some(id)),
                Some((_, before)) => self.scope(before, scope, &at),
            }
        }
        for (id, (index, scope)) in old.iter().filter(|(id, _)| !new.contains_key(*id)) {
            self.report(
                DiffRule::ScopeRemoved,
                format!("/permission_scopes/{index}"),
                value(scope),
                Value::Null,
                Some(id),
            );
        }
    }

    fn scope(&mut self, old: &Scope, new: &Scope, at: &str) {
        if old.sensitivity != new.sensitivity {
            let rule = if new.sensitivity > old.sensitivity { DiffRule::ScopeRaised } else { DiffRule::ScopeLowered };
            let (before, now) = (old.sensitivity.as_str(), new.sensitivity.as_str());
            self.report(rule, format!("{at}/sensitivity"), before, now, Some(&new.id));
        }
        let texts = [
            ("label_i18n_key", Some(&old.label_i18n_key), Some(&new.label_i18n_key)),
            ("label_fallback", old.label_fallback.as_ref(), new.label_fallback.as_ref()),
            ("description_i18n_key", old.description_i18n_key.as_ref(), new.description_i18n_key.as_ref()),
            ("description_fallback", old.description_fallback.as_ref(), new.description_fallback.as_ref()),
        ];
        self.texts(texts, at, &new.id);
    }

    fn texts<const N: usize>(&mut self, texts: [(&str, Option<&String>, Option<&String>); N], at: &str, scope: &str) {
        for (field, old, new) in texts.into_iter().filter(|(_, old, new)| old != new) {
            self.report(DiffRule::TextChanged, format!("{at}/{field}"), value(&old), value(&new), Some(scope));
        }
    }

    fn tools(&mut self) {
        let name = |tool: &'a Tool| tool.name.as_str();
        let (old, new) = (by_name(&self.old.tools, name), by_name(&self.new.tools, name));
        let mut budget = Budget::default();
        for (name, (index, tool)) in &new {
            let (at, first) = (format!("/tools/{index}"), self.changes.len());
            match old.get(name) {
                None => self.report(DiffRule::ToolAdded, at, Value::Null, value(tool), Some(&tool.permission_scope)),
                Some(before) => {
                    self.tool(before.1, tool, &at);
                    let schema = |(index, tool): PlacedItem<'a, Tool>| ToolSchema {
                        root: &tool.input_schema,
                        at: format!("/tools/{index}/input_schema"),
                        scope: &tool.permission_scope,
                    };
                    compare::compare(&schema(*before), &schema((*index, tool)), &mut budget, &mut self.changes);
                }
            }
            self.name(first, name);
        }
        for (name, (index, tool)) in old.iter().filter(|(name, _)| !new.contains_key(*name)) {
            let scope = Some(tool.permission_scope.as_str());
            let first = self.changes.len();
            self.report(DiffRule::ToolRemoved, format!("/tools/{index}"), value(tool), Value::Null, scope);
            self.name(first, name);
        }
    }

    /// Sets the tool of every change that was reported since then.
    fn name(&mut self, first: usize, tool: &str) {
        self.changes[first..].iter_mut().for_each(|change| change.tool = Some(tool.to_owned()));
    }

    fn tool(&mut self, old: &Tool, new: &Tool, at: &str) {
        let scope = new.permission_scope.as_str();
        if old.permission_scope != new.permission_scope {
            let before = sensitivity(self.old, &old.permission_scope);
            let now = sensitivity(self.new, scope);
            let rule = if now > before { DiffRule::ToolScopeRaised } else { DiffRule::ToolScopeMoved };
            let pointer = format!("{at}/permission_scope");
            self.report(rule, pointer, old.permission_scope.as_str(), scope, Some(scope));
        }
        if old.required != new.required {
            let rule = if new.required { DiffRule::ToolMadeRequired } else { DiffRule::ToolMadeOptional };
            self.report(rule, format!("{at}/required"), old.required, new.required, Some(scope));
        }
        if old.timeout_ms != new.timeout_ms {
            let pointer = format!("{at}/timeout_ms");
            self.report(DiffRule::TimeoutChanged, pointer, old.timeout_ms, new.timeout_ms, Some(scope));
        }
        let texts = [
            ("description_i18n_key", Some(&old.description_i18n_key), Some(&new.description_i18n_key)),
            ("description_fallback", old.description_fallback.as_ref(), new.description_fallback.as_ref()),
        ];
        self.texts(texts, at, scope);
    }

    fn flags(&mut self) {
        if self.old.agent_version != self.new.agent_version {
            let (old, new) = (self.old.agent_version.as_str(), self.new.agent_version.as_str());
            self.report(DiffRule::AgentVersionChanged, "/agent_version".into(), old, new, None);
        }
        let (old, new) = (value(&self.old.capability_flags), value(&self.new.capability_flags));
        for flag in FLAGS.iter().filter(|flag| old[**flag] != new[**flag]) {
            self.report(
                DiffRule::FlagChanged,
                format!("/capability_flags/{flag}"),
                old[*flag].clone(),
                new[*flag].clone(),
                None,
            );
        }
    }
}

fn sensitivity(manifest: &Manifest, id: &str) -> Option<Sensitivity> {
    manifest.permission_scopes.iter().find(|scope| scope.id == id).map(|scope| scope.sensitivity)
}

fn value(thing: &impl Serialize) -> Value {
    value_of(thing)
}
