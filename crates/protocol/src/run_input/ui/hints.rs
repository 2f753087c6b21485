//! `ui_hints` 2.1: what an agent writes. Small, descriptive, and read literally: unknown fields are ignored, and
//! anything else that does not fit makes the hints void as a whole.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schema::{UiButtonStyle, UiIconSource, UiStatus, UiTextFormat, UiTextRole, UiTheme};

/// Hints on how an answer may be shown.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UiHints {
    /// `2.1`, or another minor version of 2.
    #[schema(pattern = r"^2\.[0-9]+$")]
    pub version: Option<String>,
    /// What it is about: `message`, `data`, `list`, `status` or another word. It decides on nothing but the layout.
    pub intent: Option<String>,
    /// Shown as a badge when it is given; `info` otherwise.
    pub status: Option<UiStatus>,
    /// The language of the words, as BCP 47 writes it; `en` when left out.
    pub locale: Option<String>,
    pub theme: UiTheme,
    pub title: Option<String>,
    pub subtitle: Option<String>,
    pub message: Option<String>,
    pub blocks: Vec<UiHintBlock>,
    pub sections: Vec<UiHintSection>,
    pub actions: Vec<UiHintAction>,
    pub meta: Option<UiHintMeta>,
}

/// What the answer refers to. An agent cannot name the user.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UiHintMeta {
    pub request_id: Option<String>,
    pub tool_id: Option<String>,
    pub trace_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UiHintSection {
    pub title: Option<String>,
    #[serde(default)]
    pub blocks: Vec<UiHintBlock>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum UiHintBlock {
    Text {
        text: String,
        role: Option<UiTextRole>,
        format: Option<UiTextFormat>,
    },
    Code {
        code: String,
    },
    /// Facts by name.
    Fields {
        items: Vec<UiHintField>,
    },
    List {
        items: Vec<UiHintItem>,
        #[serde(default)]
        ordered: bool,
    },
    Table {
        columns: Vec<String>,
        rows: Vec<Vec<UiHintValue>>,
    },
    Badge {
        label: String,
        status: Option<UiStatus>,
    },
    Icon {
        source: UiIconSource,
        value: String,
    },
    Actions {
        items: Vec<UiHintAction>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UiHintField {
    pub label: String,
    pub value: UiHintValue,
    pub status: Option<UiStatus>,
}

/// A word or a line of a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum UiHintItem {
    Plain(UiHintValue),
    Rich { text: String, detail: Option<String>, emoji: Option<String>, status: Option<UiStatus> },
}

/// Whatever can be shown in a cell.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum UiHintValue {
    Text(String),
    Number(UiHintNumber),
    Flag(bool),
}

/// Any number, as it was written.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(value_type = f64)]
pub struct UiHintNumber(pub serde_json::Number);

/// Something a person can do about the answer, by one way of doing it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UiHintAction {
    pub label: String,
    pub style: Option<UiButtonStyle>,
    #[serde(flatten)]
    pub does: super::schema::UiAction,
}
