//! Branches: sessions that continue the conversation of another one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::sessions::RestoredSession;

/// Characters of a branch's name, without the number that makes it unique.
const BRANCH_NAME_CHARS_MAX: usize = 200;
/// Characters of a session's id that stand for a name where it has none.
const SHORT_ID_CHARS: usize = 8;

/// The body of `POST /session/{sessionId}/branch`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BranchSession {
    /// The name of the new session. Control characters are removed, and what is over 200 characters is cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BranchedSession {
    #[serde(flatten)]
    pub restored: RestoredSession,
    pub display_name: String,
    pub forked_from: ForkedFrom,
}

/// The session whose conversation the new one continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForkedFrom {
    pub session_id: String,
    pub display_name: String,
}

/// What a session without a name is called.
pub fn short_name(session_id: &str) -> String {
    session_id.chars().take(SHORT_ID_CHARS).collect()
}

/// The name of a branch, without its number: the requested one, else that of the session it continues.
pub fn base_name(requested: Option<&str>, title: Option<&str>, session_id: &str) -> String {
    let clean = |text: &str| {
        let text: String = text.chars().filter(|char| !char.is_control()).collect();
        let text: String = text.trim().chars().take(BRANCH_NAME_CHARS_MAX).collect();
        Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
    };
    requested.and_then(clean).or_else(|| clean(without_number(title?))).unwrap_or_else(|| short_name(session_id))
}

/// The name of a session without the number of a branch.
fn without_number(title: &str) -> &str {
    let inner = title.trim().strip_suffix(')').and_then(|rest| rest.rsplit_once('('));
    match inner {
        Some((base, number))
            if !base.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            base.trim_end()
        }
        _ => title,
    }
}

/// The first name with a number that no session has.
pub fn unique_name(base: &str, taken: &[String]) -> String {
    let is_free = |name: &String| !taken.iter().any(|other| other.eq_ignore_ascii_case(name));
    let mut names = (1..).map(|number: u64| format!("{base}({number})"));
    names.find(is_free).unwrap_or_else(|| base.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_named_after_what_it_continues() {
        assert_eq!(base_name(Some(" try\u{7} it "), Some("Plan"), "ses_12345"), "try it");
        assert_eq!(base_name(Some(" \n"), Some("Plan(2)"), "ses_12345"), "Plan");
        assert_eq!(base_name(None, Some("(2)"), "ses_12345"), "(2)");
        assert_eq!(base_name(None, None, "ses_12345"), "ses_1234");
        assert_eq!(base_name(Some(&"é".repeat(300)), None, "s").chars().count(), 200);
    }

    #[test]
    fn branches_of_one_name_are_numbered() {
        assert_eq!(unique_name("Plan", &[]), "Plan(1)");
        assert_eq!(unique_name("Plan", &["plan(1)".into(), "Plan(3)".into()]), "Plan(2)");
    }
}
