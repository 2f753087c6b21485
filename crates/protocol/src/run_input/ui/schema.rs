//! UiSchema 2.0: what a client draws. Layouts hold children, leaves are primitives; there is nothing else to know.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The version every schema of ours carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub enum UiSchemaVersion {
    #[default]
    #[serde(rename = "2.0")]
    V2,
}

/// An answer as a client can draw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UiSchemaRenderer {
    pub version: UiSchemaVersion,
    /// The language of the words, as BCP 47 writes it.
    pub locale: String,
    pub status: UiStatus,
    pub theme: UiTheme,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub meta: Option<UiMeta>,
    pub root: UiLayoutNode,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UiMeta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tool_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub trace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user_id: Option<String>,
}

macro_rules! words {
    ($(#[$about:meta])* $name:ident: $first:ident $(, $other:ident)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { #[default] $first, $($other,)* }
    };
}

words!(UiStatus: Info, Success, Warning, Error, Pending);
words!(UiTheme: Default, Light, Dark);
words!(UiTextFormat: Plain, Markdown);
words!(UiTextRole: Body, Title, Subtitle, Caption, Code);
words!(UiButtonStyle: Secondary, Primary, Ghost, Danger);
words!(UiDirection: Vertical, Horizontal);
words!(
    /// A replacement for a picture. A `url` is an `https` one.
    UiIconSource: Icon, Emoji, Url
);
words!(UiAppearance: Card);

impl UiStatus {
    /// As a badge shows it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Info => "INFO",
            Self::Success => "SUCCESS",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Pending => "PENDING",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum UiLayoutNode {
    /// One after the other, downwards unless a direction is given.
    Stack {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        direction: Option<UiDirection>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        appearance: Option<UiAppearance>,
        children: Vec<UiNode>,
    },
    /// Row by row.
    Grid { columns: usize, children: Vec<UiNode> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum UiNode {
    #[schema(no_recursion)]
    Layout(UiLayoutNode),
    Leaf(UiLeaf),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum UiLeaf {
    Text {
        content: String,
        role: UiTextRole,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(nullable = false)]
        format: Option<UiTextFormat>,
    },
    Icon {
        source: UiIconSource,
        value: String,
    },
    Badge {
        label: String,
        status: UiStatus,
    },
    Button {
        label: String,
        style: UiButtonStyle,
        action: UiAction,
    },
}

/// What a button does. A `url` is an `https` or `mailto` one; the rest is for the front end to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum UiAction {
    Navigation {
        target: String,
    },
    Url {
        url: String,
    },
    Event {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    },
    Tool {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    },
    Copy {
        text: String,
    },
    Payload {
        value: Value,
    },
}
