//! Page cursors: opaque, versioned, bound to the filters they were made for.

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Rule, Timestamp,
    json::{hex, text_of},
    limits::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, WAIT_MS_MAX},
    sha256::sha256,
};

const VERSION: &str = "c1";

/// Points behind the last item of a page in creation order.
#[derive(Clone, Debug, PartialEq)]
pub struct Cursor {
    /// Or another number by which the list is ordered.
    pub created_at_us: i64,
    pub id: String,
}

/// Names the query a cursor belongs to; any change of the filters changes it.
pub fn fingerprint<T: Serialize>(query: &str, filters: &T) -> String {
    let text = text_of(&(query, filters));
    hex(&sha256(text.as_bytes())[..6])
}

impl Cursor {
    /// Points behind the item with this id that was created then.
    pub fn after(created_at: Timestamp, id: impl ToString) -> Self {
        Self { created_at_us: created_at.as_microsecond(), id: id.to_string() }
    }

    /// Points behind the item with this id and this number, in a list that is ordered by the number.
    pub fn behind(number: i64, id: impl ToString) -> Self {
        Self { created_at_us: number, id: id.to_string() }
    }

    pub fn encode(&self, fingerprint: &str) -> String {
        hex(format!("{VERSION}.{fingerprint}.{}.{}", self.created_at_us, self.id).as_bytes())
    }

    pub fn decode(text: &str, fingerprint: &str) -> Result<Self, Failure> {
        let refused = || Failure::invalid(Rule::CursorUnknown, "the cursor does not belong to this query");
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

/// A page that a caller requests: a checked size, the query that its cursors belong to, and where it starts.
#[derive(Clone, Debug)]
pub struct PageRequest {
    limit: u32,
    fingerprint: String,
    /// The page starts behind this.
    pub after: Option<Cursor>,
}

impl PageRequest {
    /// Fails if the limit is out of range, or if the cursor belongs to another query or other filters.
    pub fn new<F: Serialize>(
        query: &str,
        filters: &F,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Self, Failure> {
        let limit = self::limit(limit)?;
        let fingerprint = fingerprint(query, filters);
        let after = cursor.map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
        Ok(Self { limit, fingerprint, after })
    }

    /// How many rows to read: one more than the page holds, which shows whether more follow.
    pub fn rows_max(&self) -> u32 {
        self.limit + 1
    }

    /// The page, from at most [`rows_max`](Self::rows_max) rows in the list's order.
    pub fn page<T>(&self, rows: Vec<T>, cursor_of: impl FnOnce(&T) -> Cursor) -> Page<T> {
        Page::new(rows, self.limit, &self.fingerprint, cursor_of)
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page starts. `None` if this is the last one.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// `rows` were read with a limit of one more than `limit`.
    pub fn new(mut rows: Vec<T>, limit: u32, fingerprint: &str, cursor_of: impl FnOnce(&T) -> Cursor) -> Self {
        let has_more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next_cursor = rows.last().filter(|_| has_more).map(|last| cursor_of(last).encode(fingerprint));
        Self { items: rows, next_cursor }
    }
}

/// Checks a page's size: 1 to the maximum, one past it refused.
pub fn limit(limit: Option<u32>) -> Result<u32, Failure> {
    match limit.unwrap_or(PAGE_ITEMS_DEFAULT) {
        size @ 1..=PAGE_ITEMS_MAX => Ok(size),
        _ => Err(Failure::invalid(Rule::PageLimit, format!("limit must be 1 to {PAGE_ITEMS_MAX}"))),
    }
}

pub fn wait_ms(wait_ms: Option<u64>) -> Result<u64, Failure> {
    match wait_ms.unwrap_or(0) {
        wait @ 0..=WAIT_MS_MAX => Ok(wait),
        _ => Err(Failure::invalid(Rule::WaitLimit, format!("waitMs must be 0 to {WAIT_MS_MAX}"))),
    }
}

pub fn after_seq(after_seq: i64) -> Result<i64, Failure> {
    if after_seq < 0 {
        return Err(Failure::invalid(Rule::AfterSeq, "afterSeq must not be negative"));
    }
    Ok(after_seq)
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

    /// Numbers as a store would list them: newest first, so many, behind the cursor.
    fn list(count: i64, request: &PageRequest) -> Vec<i64> {
        let end = request.after.as_ref().map_or(count, |cursor| cursor.created_at_us);
        (0..end).rev().take(request.rows_max() as usize).collect()
    }

    fn read_page(count: i64, limit: u32, cursor: Option<&str>) -> Page<i64> {
        let request = PageRequest::new("numbers", &(), Some(limit), cursor).unwrap();
        let cursor_of = |number: &i64| Cursor::after(Timestamp::from_microsecond(*number).unwrap(), number);
        request.page(list(count, &request), cursor_of)
    }

    #[test]
    fn only_the_last_page_has_no_cursor() {
        assert_eq!(read_page(0, 3, None), Page { items: vec![], next_cursor: None });
        assert_eq!(read_page(3, 3, None), Page { items: vec![2, 1, 0], next_cursor: None });
        let first = read_page(4, 3, None);
        assert_eq!(first.items, [3, 2, 1]);
        let last = read_page(4, 3, first.next_cursor.as_deref());
        assert_eq!(last, Page { items: vec![0], next_cursor: None });
    }

    proptest::proptest! {
        #[test]
        fn pages_hold_every_item_once_in_order(count in 0..60_i64, limit in 1..9_u32) {
            let (mut found, mut cursor) = (vec![], None);
            loop {
                let page = read_page(count, limit, cursor.as_deref());
                proptest::prop_assert!(page.items.len() <= limit as usize);
                found.extend(page.items);
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            proptest::prop_assert_eq!(found, (0..count).rev().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_request_with_a_bad_limit_or_the_cursor_of_other_filters_is_refused() {
        let page = |filter: &str, limit, cursor: Option<&str>| PageRequest::new("runs", &filter, limit, cursor);
        assert_eq!(page("a", None, None).unwrap().rows_max(), PAGE_ITEMS_DEFAULT + 1);
        for limit in [0, PAGE_ITEMS_MAX + 1] {
            assert_eq!(page("a", Some(limit), None).unwrap_err().rule_name(), Some("page-limit"));
        }
        let cursor = Cursor { created_at_us: 5, id: "run_a".into() }.encode(&fingerprint("runs", &"a"));
        assert_eq!(page("a", None, Some(&cursor)).unwrap().after.unwrap().id, "run_a");
        assert_eq!(page("b", None, Some(&cursor)).unwrap_err().rule_name(), Some("cursor-unknown"));
    }
}
