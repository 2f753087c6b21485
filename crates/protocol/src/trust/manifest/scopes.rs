//! Scopes: how sensitive one is, which ids are the platform's, and which scopes are predefined.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much a scope lets an agent do, from silent to asking every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sensitivity {
    Low,
    Medium,
    High,
}

impl Sensitivity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// The level in force for a person who consented to a scope. An owner cannot lower it afterwards.
    pub fn in_force(consented: Self, declared: Self) -> Self {
        consented.max(declared)
    }
}

/// A scope whose texts come with the program, in all of its languages.
pub struct Preset {
    pub id: &'static str,
    /// A manifest may call it more sensitive, never less.
    pub floor: Sensitivity,
}

pub const PRESETS: [Preset; 6] = [
    Preset { id: "notification:send", floor: Sensitivity::Low },
    Preset { id: "filesystem:read", floor: Sensitivity::Medium },
    Preset { id: "clipboard:read", floor: Sensitivity::Medium },
    Preset { id: "location:read", floor: Sensitivity::High },
    // Those of the server's own tools.
    Preset { id: "calendar:read", floor: Sensitivity::Low },
    Preset { id: "calendar:write", floor: Sensitivity::Low },
];

/// Only the platform declares scopes that begin so.
const RESERVED_PREFIXES: [&str; 2] = ["hashee:", "system:"];

pub fn preset(id: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.id == id)
}

pub fn is_reserved(id: &str) -> bool {
    RESERVED_PREFIXES.iter().any(|prefix| id.starts_with(prefix))
}
