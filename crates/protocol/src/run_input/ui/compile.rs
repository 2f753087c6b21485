//! Hints into a schema. Nothing an agent wrote is left out, and nothing can fail: hints that are not ours to
//! understand, that are empty or that are too large make no schema.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    hints::{UiHintAction, UiHintBlock, UiHintField, UiHintItem, UiHintValue, UiHints},
    schema::{
        UiAction, UiAppearance, UiDirection, UiIconSource, UiLayoutNode, UiLeaf, UiMeta, UiNode, UiSchemaRenderer,
        UiSchemaVersion, UiStatus, UiTextRole,
    },
};

/// Hints over this size are none.
pub(super) const HINTS_BYTES_MAX: usize = 64 * 1024;
/// … and so are hints that would make more nodes than a screen can show.
pub(super) const NODES_MAX: usize = 1_000;
/// The language of hints that name none.
const LOCALE: &str = "en";
const LOCALE_BYTES_MAX: usize = 35;

/// The schema of an `assistant_message`, from the `uiHints` (or `ui_hints`) in its payload.
pub fn of_message(payload: &str) -> Option<UiSchemaRenderer> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(rename = "uiHints", alias = "ui_hints", borrow)]
        hints: &'a RawValue,
    }
    compile(serde_json::from_str::<Message<'_>>(payload).ok()?.hints.get())
}

/// The schema of these hints.
pub fn compile(hints: &str) -> Option<UiSchemaRenderer> {
    if hints.len() > HINTS_BYTES_MAX {
        return None;
    }
    let given: Value = serde_json::from_str(hints).ok()?;
    let hints = UiHints::deserialize(&given).ok()?;
    if !same_shape(&given, &serde_json::to_value(&hints).ok()?) {
        return None;
    }
    if !is_known_version(hints.version.as_deref()) || hints.locale.as_deref().is_some_and(|locale| !is_locale(locale)) {
        return None;
    }
    let mut nodes = Nodes { left: NODES_MAX };
    let children = nodes.page(&hints)?;
    let meta = hints.meta.map(|meta| UiMeta {
        request_id: meta.request_id,
        tool_id: meta.tool_id,
        trace_id: meta.trace_id,
        user_id: None,
    });
    Some(UiSchemaRenderer {
        version: UiSchemaVersion::V2,
        locale: hints.locale.unwrap_or_else(|| LOCALE.into()),
        status: hints.status.unwrap_or_default(),
        theme: hints.theme,
        meta: meta.filter(|meta| *meta != UiMeta::default()),
        root: UiLayoutNode::Stack { direction: None, appearance: Some(UiAppearance::Card), children },
    })
}

/// A list is also read as an object's fields in their order, which is never intended.
fn same_shape(given: &Value, read: &Value) -> bool {
    match (given, read) {
        (Value::Object(given), Value::Object(read)) => {
            given.iter().all(|(name, value)| read.get(name).is_none_or(|read| same_shape(value, read)))
        }
        (Value::Array(given), Value::Array(read)) => {
            given.iter().zip(read).all(|(given, read)| same_shape(given, read))
        }
        (Value::Array(_), _) | (_, Value::Array(_)) => false,
        _ => true,
    }
}

fn is_known_version(version: Option<&str>) -> bool {
    let Some(version) = version else { return true };
    let minor = version.strip_prefix("2.").unwrap_or_default();
    !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_locale(locale: &str) -> bool {
    let tag = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    locale.len() <= LOCALE_BYTES_MAX && locale.split('-').all(tag)
}

/// Makes nodes as long as there may be more. `None`: the requested node cannot be displayed.
struct Nodes {
    left: usize,
}

impl Nodes {
    fn page(&mut self, hints: &UiHints) -> Option<Vec<UiNode>> {
        let mut children = vec![];
        children.extend(self.words(hints.title.as_deref(), UiTextRole::Title)?);
        children.extend(self.words(hints.subtitle.as_deref(), UiTextRole::Subtitle)?);
        if let Some(status) = hints.status {
            children.push(self.badge(status.label(), status)?);
        }
        children.extend(self.words(hints.message.as_deref(), UiTextRole::Body)?);
        children.extend(self.blocks(&hints.blocks)?);
        let mut sections = vec![];
        for section in &hints.sections {
            let mut inner: Vec<_> = self.words(section.title.as_deref(), UiTextRole::Subtitle)?.into_iter().collect();
            inner.extend(self.blocks(&section.blocks)?);
            if !inner.is_empty() {
                sections.push(self.stack(None, inner)?);
            }
        }
        // The only thing an intent decides: data in several sections is laid out side by side.
        if hints.intent.as_deref() == Some("data") && sections.len() > 1 {
            sections = vec![self.layout(UiLayoutNode::Grid { columns: 2, children: sections })?];
        }
        children.extend(sections);
        children.extend(self.buttons(&hints.actions)?);
        (!children.is_empty()).then_some(children)
    }

    fn blocks(&mut self, blocks: &[UiHintBlock]) -> Option<Vec<UiNode>> {
        let made: Option<Vec<_>> = blocks.iter().map(|block| self.block(block)).collect();
        Some(made?.into_iter().flatten().collect())
    }

    /// One node, or none where there is nothing in it.
    fn block(&mut self, block: &UiHintBlock) -> Option<Option<UiNode>> {
        Some(match block {
            UiHintBlock::Text { text, role, format } => {
                let (content, role) = (text.clone(), role.unwrap_or_default());
                Some(self.leaf(UiLeaf::Text { content, role, format: *format })?)
            }
            UiHintBlock::Code { code } => Some(self.text(code, UiTextRole::Code)?),
            UiHintBlock::Fields { items } => self.fields(items)?,
            UiHintBlock::List { items, ordered } => self.list(items, *ordered)?,
            UiHintBlock::Table { columns, rows } => self.table(columns, rows)?,
            UiHintBlock::Badge { label, status } => Some(self.badge(label, status.unwrap_or_default())?),
            UiHintBlock::Icon { source, value } => Some(self.icon(*source, value)?),
            UiHintBlock::Actions { items } => self.buttons(items)?,
        })
    }

    fn fields(&mut self, items: &[UiHintField]) -> Option<Option<UiNode>> {
        let mut cells = vec![];
        for UiHintField { label, value, status } in items {
            cells.push(self.text(label, UiTextRole::Caption)?);
            let value = self.text(&text_of_value(value), UiTextRole::Body)?;
            cells.push(match status {
                None => value,
                Some(status) => {
                    let badge = self.badge(status.label(), *status)?;
                    self.stack(Some(UiDirection::Horizontal), vec![value, badge])?
                }
            });
        }
        self.grid(2, cells)
    }

    fn list(&mut self, items: &[UiHintItem], ordered: bool) -> Option<Option<UiNode>> {
        let mut lines = vec![];
        for (index, item) in items.iter().enumerate() {
            let mark = if ordered { format!("{}.", index + 1) } else { "•".into() };
            let mut line = vec![self.text(&mark, UiTextRole::Caption)?];
            match item {
                UiHintItem::Plain(value) => line.push(self.text(&text_of_value(value), UiTextRole::Body)?),
                UiHintItem::Rich { text, detail, emoji, status } => {
                    if let Some(emoji) = emoji {
                        line.push(self.icon(UiIconSource::Emoji, emoji)?);
                    }
                    line.push(self.text(text, UiTextRole::Body)?);
                    line.extend(self.words(detail.as_deref(), UiTextRole::Caption)?);
                    if let Some(status) = status {
                        line.push(self.badge(status.label(), *status)?);
                    }
                }
            }
            lines.push(self.stack(Some(UiDirection::Horizontal), line)?);
        }
        if lines.is_empty() { Some(None) } else { self.stack(None, lines).map(Some) }
    }

    /// As wide as its widest row, so that nothing is cut off; short rows are filled up.
    fn table(&mut self, columns: &[String], rows: &[Vec<UiHintValue>]) -> Option<Option<UiNode>> {
        let width = rows.iter().map(Vec::len).chain([columns.len()]).max().unwrap_or(0);
        let mut cells = vec![];
        if !columns.is_empty() {
            for at in 0..width {
                cells.push(self.text(columns.get(at).map_or("", String::as_str), UiTextRole::Caption)?);
            }
        }
        for row in rows {
            for at in 0..width {
                let value = row.get(at).map(text_of_value).unwrap_or_default();
                cells.push(self.text(&value, UiTextRole::Body)?);
            }
        }
        self.grid(width, cells)
    }

    fn buttons(&mut self, actions: &[UiHintAction]) -> Option<Option<UiNode>> {
        let mut buttons = vec![];
        for UiHintAction { label, style, does } in actions {
            if matches!(does, UiAction::Url { url } if !has_scheme(url, &["https:", "mailto:"])) {
                return None;
            }
            let (label, style) = (label.clone(), style.unwrap_or_default());
            buttons.push(self.leaf(UiLeaf::Button { label, style, action: does.clone() })?);
        }
        if buttons.is_empty() { Some(None) } else { self.stack(Some(UiDirection::Horizontal), buttons).map(Some) }
    }

    fn grid(&mut self, columns: usize, cells: Vec<UiNode>) -> Option<Option<UiNode>> {
        if cells.is_empty() {
            return Some(None);
        }
        self.layout(UiLayoutNode::Grid { columns, children: cells }).map(Some)
    }

    fn stack(&mut self, direction: Option<UiDirection>, children: Vec<UiNode>) -> Option<UiNode> {
        self.layout(UiLayoutNode::Stack { direction, appearance: None, children })
    }

    /// A text, where there are words.
    fn words(&mut self, text: Option<&str>, role: UiTextRole) -> Option<Option<UiNode>> {
        match text.filter(|text| !text.is_empty()) {
            None => Some(None),
            Some(text) => self.text(text, role).map(Some),
        }
    }

    fn text(&mut self, text: &str, role: UiTextRole) -> Option<UiNode> {
        self.leaf(UiLeaf::Text { content: text.to_owned(), role, format: None })
    }

    fn badge(&mut self, label: &str, status: UiStatus) -> Option<UiNode> {
        self.leaf(UiLeaf::Badge { label: label.to_owned(), status })
    }

    /// A picture from elsewhere is loaded by the user's browser, so its URL must at least be safe.
    fn icon(&mut self, source: UiIconSource, value: &str) -> Option<UiNode> {
        if source == UiIconSource::Url && !has_scheme(value, &["https:"]) {
            return None;
        }
        self.leaf(UiLeaf::Icon { source, value: value.to_owned() })
    }

    fn leaf(&mut self, leaf: UiLeaf) -> Option<UiNode> {
        self.left = self.left.checked_sub(1)?;
        Some(UiNode::Leaf(leaf))
    }

    fn layout(&mut self, layout: UiLayoutNode) -> Option<UiNode> {
        self.left = self.left.checked_sub(1)?;
        Some(UiNode::Layout(layout))
    }
}

fn text_of_value(value: &UiHintValue) -> String {
    match value {
        UiHintValue::Text(text) => text.clone(),
        UiHintValue::Number(number) => number.0.to_string(),
        UiHintValue::Flag(flag) => flag.to_string(),
    }
}

fn has_scheme(url: &str, schemes: &[&str]) -> bool {
    let begins = |scheme: &&str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    !url.contains(|c: char| c.is_control() || c.is_whitespace()) && schemes.iter().any(begins)
}
