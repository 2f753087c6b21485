//! JSON that travels as text: parsed once to validate, never re-serialised on the way out.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// A JSON value kept as the text it arrived in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self)
    }

    pub fn of<T: Serialize>(value: &T) -> Self {
        Self(serde_json::value::to_raw_value(value).expect("our own types serialise"))
    }

    pub fn null() -> Self {
        Self::of(&())
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Reads the text into a type. `None`: it has another shape.
    pub fn view<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.as_str()).ok()
    }

    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(self.as_str()).expect("checked when it was made")
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// SHA-256 of the RFC 8785 canonical form, in hex: equal for bodies that mean the same.
pub fn canonical_hash(value: &serde_json::Value) -> String {
    let canonical = serde_json_canonicalizer::to_vec(value).expect("a JSON value has a canonical form");
    hex(&Sha256::digest(&canonical))
}

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// For fields where "absent" and "null" differ: `#[serde(default, deserialize_with = "present")]`.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(input: D) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}
