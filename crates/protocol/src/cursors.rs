//! Page cursors: opaque, versioned, bound to the filters they were made for.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Failure,
    json::hex,
    limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, WAIT_MS_MAX},
};

const VERSION: &str = "c1";

/// Points behind the last item of a page in creation order.
#[derive(Clone, Debug, PartialEq)]
pub struct Cursor {
    pub created_at_us: i64,
    pub id: String,
}

/// Names the query a cursor belongs to; any change of the filters changes it.
pub fn fingerprint<T: Serialize>(query: &str, filters: &T) -> String {
    let text = serde_json::to_string(&(query, filters)).expect("filters serialise");
    hex(&Sha256::digest(text.as_bytes())[..6])
}

impl Cursor {
    pub fn encode(&self, fingerprint: &str) -> String {
        hex(format!("{VERSION}.{fingerprint}.{}.{}", self.created_at_us, self.id).as_bytes())
    }

    pub fn decode(text: &str, fingerprint: &str) -> Result<Self, Failure> {
        let refused = || Failure::invalid("cursor-unknown", "the cursor does not belong to this query");
        let bytes: Option<Vec<u8>> = (text.len().is_multiple_of(2) && text.is_ascii())
            .then(|| (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).ok()).collect())
            .flatten();
        let plain = String::from_utf8(bytes.ok_or_else(refused)?).map_err(|_| refused())?;
        let mut parts = plain.splitn(4, '.');
        let fits = parts.next() == Some(VERSION) && parts.next() == Some(fingerprint);
        let created_at_us = parts.next().and_then(|n| n.parse().ok());
        match (fits, created_at_us, parts.next()) {
            (true, Some(created_at_us), Some(id)) => Ok(Self { created_at_us, id: id.to_owned() }),
            _ => Err(refused()),
        }
    }
}

/// Checks a page's size: 1 to the maximum, one past it refused.
pub fn limit(asked: Option<u32>) -> Result<u32, Failure> {
    match asked.unwrap_or(PAGE_ITEMS_DEFAULT) {
        size @ 1..=PAGE_ITEMS_MAX => Ok(size),
        _ => Err(Failure::invalid("page-limit", format!("limit must be 1 to {PAGE_ITEMS_MAX}"))),
    }
}

pub fn wait_ms(asked: Option<u64>) -> Result<u64, Failure> {
    match asked.unwrap_or(0) {
        wait @ 0..=WAIT_MS_MAX => Ok(wait),
        _ => Err(Failure::invalid("wait-limit", format!("waitMs must be 0 to {WAIT_MS_MAX}"))),
    }
}

pub fn after_seq(asked: i64) -> Result<i64, Failure> {
    if asked < 0 {
        return Err(Failure::invalid("after-seq", "afterSeq must not be negative"));
    }
    Ok(asked)
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events numbered above this.
    pub after_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// With no event yet, wait this long for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_another_query_is_refused() {
        let cursor = Cursor { created_at_us: 5, id: "run_a".into() };
        let mine = fingerprint("runs", &("hwlab", 1));
        let text = cursor.encode(&mine);
        assert_eq!(Cursor::decode(&text, &mine).unwrap(), cursor);
        assert!(Cursor::decode(&text, &fingerprint("runs", &("unidesk", 1))).is_err());
        assert!(Cursor::decode("zz", &mine).is_err() && Cursor::decode("é", &mine).is_err());
    }
}
