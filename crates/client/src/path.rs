//! Paths and queries of calls. Segments and values are percent-encoded, so that no id can change the structure of a path.

use ostler_protocol::{Failure, Rule};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;

/// Everything except the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Clone, Debug)]
pub(crate) struct Path(String);

impl Path {
    /// A constant path.
    pub(crate) fn fixed(path: &'static str) -> Self {
        Self(path.to_owned())
    }

    /// A path and query as written by a user.
    pub(crate) fn raw(path: &str) -> Result<Self, Failure> {
        let fits = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
        let invalid = || Failure::invalid(Rule::PathShape, "a path begins with a slash and contains no spaces");
        fits.then(|| Self(path.to_owned())).ok_or_else(invalid)
    }

    /// The segments below `/api/v1`.
    pub(crate) fn api(segments: &[&str]) -> Self {
        Self::with_prefix("/api/v1", segments)
    }

    /// The segments at the root, for dialects without a prefix.
    pub(crate) fn of(segments: &[&str]) -> Self {
        Self::with_prefix("", segments)
    }

    fn with_prefix(prefix: &str, segments: &[&str]) -> Self {
        let mut path = String::with_capacity(80);
        path.push_str(prefix);
        for segment in segments {
            path.push('/');
            match *segment {
                // Servers decode encoded dots, so an id that consists of dots must not become a segment.
                "" | "." | ".." => path.push_str("%00"),
                segment => path.extend(utf8_percent_encode(segment, RESERVED)),
            }
        }
        Self(path)
    }

    /// Adds the fields of a query type. Null fields are left out.
    pub(crate) fn query<Q: Serialize>(mut self, query: &Q) -> Result<Self, Failure> {
        let Value::Object(fields) = serde_json::to_value(query).map_err(Failure::internal)? else {
            return Err(Failure::internal("a query is a struct of plain fields"));
        };
        let mut mark = '?';
        for (name, value) in fields {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => text,
                plain => plain.to_string(),
            };
            self.0.push(mark);
            self.0.extend(utf8_percent_encode(&name, RESERVED));
            self.0.push('=');
            self.0.extend(utf8_percent_encode(&text, RESERVED));
            mark = '&';
        }
        Ok(self)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use ostler_protocol::{cursors::EventsQuery, kernel::runs::ListRuns};

    use super::*;

    #[test]
    fn a_segment_cannot_change_the_path() {
        assert_eq!(
            Path::api(&["runs", "a/b?c#d e%é", "events"]).as_str(),
            "/api/v1/runs/a%2Fb%3Fc%23d%20e%25%C3%A9/events"
        );
        assert_eq!(Path::api(&["runs", "..", "x"]).as_str(), "/api/v1/runs/%00/x");
        assert_eq!(Path::api(&["runs", ""]).as_str(), "/api/v1/runs/%00");
    }

    #[test]
    fn a_query_contains_the_fields_that_are_set() {
        let query = EventsQuery { after_seq: 7, limit: None, wait_ms: Some(5) };
        assert_eq!(Path::fixed("/x").query(&query).unwrap().as_str(), "/x?afterSeq=7&waitMs=5");
        let query = ListRuns { project_id: Some("a&b=c".into()), ..ListRuns::default() };
        assert_eq!(Path::fixed("/x").query(&query).unwrap().as_str(), "/x?projectId=a%26b%3Dc");
    }
}
