//! Memory: text files with what agents should know in a workspace. Their content precedes every prompt. `workspace` memory is a
//! file of the workspace's root, `global` memory is a file of the server.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::cells::StatusCell;
use crate::{Failure, Rule};

/// The names of memory files in the root of a workspace. The first one that exists is written; without any, the first.
pub const MEMORY_FILES: [&str; 2] = ["AGENTS.md", "QWEN.md"];
/// Most bytes of the content of one request.
pub const MEMORY_CONTENT_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a memory file.
pub const MEMORY_FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryScope {
    Workspace,
    Global,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemoryMode {
    #[default]
    Append,
    Replace,
}

/// `POST /workspace/memory`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WriteMemory {
    #[schema(value_type = MemoryScope, required)]
    pub scope: Option<Value>,
    /// Left out: the content is appended.
    #[schema(value_type = Option<MemoryMode>)]
    pub mode: Option<Value>,
    /// Up to 1 MiB of text.
    #[schema(value_type = String, required)]
    pub content: Option<Value>,
}

/// A request whose members are valid.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryChange {
    pub scope: MemoryScope,
    pub mode: MemoryMode,
    pub content: String,
}

impl WriteMemory {
    pub fn read(self) -> Result<MemoryChange, Failure> {
        let scope = match self.scope.as_ref().and_then(Value::as_str) {
            Some("workspace") => MemoryScope::Workspace,
            Some("global") => MemoryScope::Global,
            _ => return Err(Failure::invalid(Rule::InvalidScope, "scope must be workspace or global")),
        };
        let mode = match self.mode {
            None => MemoryMode::Append,
            Some(mode) => match mode.as_str() {
                Some("append") => MemoryMode::Append,
                Some("replace") => MemoryMode::Replace,
                _ => return Err(Failure::invalid(Rule::InvalidMode, "mode must be append or replace")),
            },
        };
        let Some(Value::String(content)) = self.content else {
            return Err(Failure::invalid(Rule::InvalidContent, "content must be text"));
        };
        if content.len() > MEMORY_CONTENT_BYTES_MAX {
            let message = format!("content: {} bytes, the limit is {MEMORY_CONTENT_BYTES_MAX}", content.len());
            return Err(Failure::invalid(Rule::ContentTooLarge, message));
        }
        Ok(MemoryChange { scope, mode, content })
    }
}

/// A memory file after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedMemory {
    pub text: String,
    /// Bytes that the change adds to the file, or replaces it with.
    pub bytes_written: usize,
}

impl MemoryChange {
    /// The file after the change. `None` if it would not differ, or if only whitespace is appended. Appended content
    /// starts on a new line and ends with one.
    pub fn apply(&self, existing: Option<&str>) -> Result<Option<ChangedMemory>, Failure> {
        let before = existing.unwrap_or_default();
        let changed = match self.mode {
            MemoryMode::Replace if existing == Some(self.content.as_str()) => return Ok(None),
            MemoryMode::Replace => ChangedMemory { text: self.content.clone(), bytes_written: self.content.len() },
            MemoryMode::Append if self.content.trim().is_empty() => return Ok(None),
            MemoryMode::Append => {
                let start = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
                let end = if self.content.ends_with('\n') { "" } else { "\n" };
                let text = [before, start, &self.content, end].concat();
                ChangedMemory { bytes_written: text.len() - before.len(), text }
            }
        };
        match changed.text.len() {
            bytes if bytes > MEMORY_FILE_BYTES_MAX => {
                Err(Failure::too_large(Rule::MemoryFileTooLarge, "the memory file", bytes, MEMORY_FILE_BYTES_MAX))
            }
            _ => Ok(Some(changed)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryWritten {
    pub ok: bool,
    pub file_path: String,
    /// 0 if nothing was written.
    pub bytes_written: usize,
    pub mode: MemoryMode,
    pub changed: bool,
}

/// `GET /workspace/memory`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStatus {
    pub v: u32,
    pub workspace_cwd: String,
    pub initialized: bool,
    pub files: Vec<MemoryFile>,
    pub total_bytes: usize,
    pub file_count: usize,
    /// The number of list items and of other paragraphs in all files. Headings and blocks of code are none.
    pub rule_count: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(nullable = false)]
    pub errors: Vec<StatusCell>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFile {
    /// Always `memory_file`.
    pub kind: String,
    pub path: String,
    pub scope: MemoryScope,
    pub bytes: usize,
}

/// The number of list items and of other paragraphs in a Markdown text. Headings and fenced blocks of code are none.
pub fn rule_count(text: &str) -> usize {
    let (mut count, mut is_in_code, mut is_in_paragraph) = (0, false, false);
    for line in text.lines().map(str::trim) {
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        is_in_code ^= is_fence;
        if is_in_code || is_fence || line.is_empty() || line.starts_with('#') {
            is_in_paragraph = false;
            continue;
        }
        // A line that follows an item or a paragraph without a break belongs to it.
        if is_list_item(line) || !is_in_paragraph {
            count += 1;
        }
        is_in_paragraph = true;
    }
    count
}

fn is_list_item(line: &str) -> bool {
    let is_bullet = ["- ", "* ", "+ "].iter().any(|mark| line.starts_with(mark));
    let number = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    is_bullet || number > 0 && [". ", ") "].iter().any(|mark| line[number..].starts_with(mark))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(mode: MemoryMode, content: &str) -> MemoryChange {
        MemoryChange { scope: MemoryScope::Workspace, mode, content: content.to_owned() }
    }

    #[test]
    fn each_member_of_a_request_has_its_own_rule() {
        let read = |body: Value| {
            let write: WriteMemory = serde_json::from_value(body).unwrap();
            write.read().map_err(|failure| failure.broken_rule())
        };
        let good = read(json!({"scope": "global", "content": "x"})).unwrap();
        assert_eq!((good.scope, good.mode), (MemoryScope::Global, MemoryMode::Append));
        for scope in [json!(null), json!("user"), json!(7)] {
            assert_eq!(read(json!({"scope": scope, "content": "x"})), Err(Some(Rule::InvalidScope)));
        }
        for mode in [json!("delete"), json!(7)] {
            let body = json!({"scope": "global", "content": "x", "mode": mode});
            assert_eq!(read(body), Err(Some(Rule::InvalidMode)));
        }
        for content in [json!(null), json!(7)] {
            assert_eq!(read(json!({"scope": "global", "content": content})), Err(Some(Rule::InvalidContent)));
        }
        let sized = |bytes: usize| read(json!({"scope": "global", "content": "x".repeat(bytes)})).map(drop);
        assert_eq!(sized(MEMORY_CONTENT_BYTES_MAX), Ok(()));
        assert_eq!(sized(MEMORY_CONTENT_BYTES_MAX + 1), Err(Some(Rule::ContentTooLarge)));
    }

    #[test]
    fn appended_content_has_lines_of_its_own() {
        let append = |before: Option<&str>, content: &str| {
            let changed = change(MemoryMode::Append, content).apply(before).unwrap();
            changed.map(|changed| (changed.text, changed.bytes_written))
        };
        assert_eq!(append(None, "- a"), Some(("- a\n".to_owned(), 4)));
        assert_eq!(append(Some("- a"), "- b\n"), Some(("- a\n- b\n".to_owned(), 5)));
        assert_eq!(append(Some("- a\n"), "- b"), Some(("- a\n- b\n".to_owned(), 4)));
        assert_eq!(append(Some("- a\n"), " \n\t"), None);
    }

    #[test]
    fn a_replacement_by_the_same_text_changes_nothing() {
        let replace = |before: Option<&str>, content: &str| {
            change(MemoryMode::Replace, content).apply(before).unwrap().map(|changed| changed.text)
        };
        assert_eq!(replace(Some("a"), "a"), None);
        assert_eq!(replace(Some("a"), "").as_deref(), Some(""));
        assert_eq!(replace(None, "").as_deref(), Some(""));
    }

    #[test]
    fn a_file_does_not_grow_beyond_its_limit() {
        let before = "x".repeat(MEMORY_FILE_BYTES_MAX - 4);
        let append = |content: &str| change(MemoryMode::Append, content).apply(Some(&before));
        assert_eq!(append("ab").unwrap().unwrap().text.len(), MEMORY_FILE_BYTES_MAX);
        assert_eq!(append("abc").unwrap_err().broken_rule(), Some(Rule::MemoryFileTooLarge));
    }

    #[test]
    fn items_and_paragraphs_are_rules_and_headings_and_code_are_not() {
        let text = "# Title\n\nUse tabs.\nAlways.\n\n## More\n- one\n  continued\n* two\n1. three\n12) four\n\n\
            ```sh\nmake test\n\n- no item\n```\nThe end.\n";
        assert_eq!(rule_count(text), 6);
        assert_eq!((rule_count(""), rule_count("-no item"), rule_count("2026 was a year")), (0, 1, 1));
    }
}
