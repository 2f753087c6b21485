//! Files of the workspace: what clients send and receive, and the rules that need no file system. Containment itself is not
//! decided here: the server resolves every path below a handle of the workspace's directory.

mod failures;
mod globs;
mod paths;
mod text;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub use self::{
    failures::{ERROR_KIND, FileError, file_failure},
    globs::{GLOB_BYTES_MAX, GlobPattern},
    paths::{PATH_BYTES_MAX, PATH_DEPTH_MAX, WorkspacePath},
    text::{
        Edit, FileProfile, LineEnding, TextRequest, TextWindow, TextWrite, check_content_hash, content_hash,
        encode_text, is_binary, replace_once, text_window,
    },
};

/// The largest file that is read as text at once, the largest part of one, and the largest window of bytes.
pub const FILE_READ_BYTES_MAX: usize = 256 * 1024;
/// The largest file that a part is read of as text.
pub const FILE_SCAN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The largest file that is written or edited.
pub const FILE_WRITE_BYTES_MAX: usize = 5 * 1024 * 1024;
/// The body of a write: its content with many characters escaped.
pub const FILE_BODY_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Bytes that are read if the request does not say how many.
pub const FILE_WINDOW_BYTES_DEFAULT: usize = 64 * 1024;
/// Lines of one response.
pub const FILE_LINES_MAX: usize = 2_000;
/// Entries of one listing.
pub const LIST_ENTRIES_MAX: usize = 2_000;
pub const GLOB_RESULTS_DEFAULT: usize = 5_000;
pub const GLOB_RESULTS_MAX: usize = 50_000;
/// The largest integer that clients can represent exactly.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// Which text to read.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadFileQuery {
    /// Relative to the workspace, or absolute and inside it.
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// Return at most this many bytes of the text.
    #[param(minimum = 1, maximum = 262144)]
    pub max_bytes: Option<u64>,
    /// The first line to return, from 1.
    #[param(minimum = 1, maximum = 9007199254740991_u64)]
    pub line: Option<u64>,
    /// How many lines to return.
    #[param(minimum = 1, maximum = 2000)]
    pub limit: Option<u64>,
}

/// Which bytes to read.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadBytesQuery {
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    #[param(minimum = 0, maximum = 9007199254740991_u64)]
    pub offset: Option<u64>,
    #[param(minimum = 1, maximum = 262144)]
    pub max_bytes: Option<u64>,
}

/// Which file or directory to describe.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StatQuery {
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
}

/// Which directory to list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    #[param(min_length = 1, max_length = 4096)]
    pub path: String,
    /// Without effect: this server never hides an entry.
    #[param(max_length = 5)]
    pub include_ignored: Option<String>,
}

/// Which paths to find.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GlobQuery {
    #[param(min_length = 1, max_length = 1024)]
    pub pattern: String,
    #[param(minimum = 1, maximum = 50000)]
    pub max_results: Option<u64>,
    /// The directory that the pattern starts in. By default, the workspace.
    #[param(max_length = 4096)]
    pub cwd: Option<String>,
    /// Without effect: this server never hides an entry.
    #[param(max_length = 5)]
    pub include_ignored: Option<String>,
}

/// A text file, or some lines of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFile {
    /// Always `file`.
    pub kind: String,
    pub path: String,
    /// Without a byte order mark.
    pub content: String,
    pub encoding: String,
    pub bom: bool,
    pub line_ending: LineEnding,
    /// The size of the whole file.
    pub size_bytes: u64,
    /// The size of `content`.
    pub returned_bytes: u64,
    /// Whether the file has more text than `content`.
    pub truncated: bool,
    /// The digest of the whole file, whatever part of it is returned.
    pub hash: String,
    /// Always null: this server applies no ignore rules.
    pub matched_ignore: Option<String>,
    /// How many lines the whole file has, if only some of them were requested.
    pub original_line_count: Option<u64>,
}

/// Bytes of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFileBytes {
    /// Always `file_bytes`.
    pub kind: String,
    pub path: String,
    pub offset: u64,
    pub size_bytes: u64,
    pub returned_bytes: u64,
    pub truncated: bool,
    pub content_base64: String,
    /// The digest of the file, if the response has all its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hash: Option<String>,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// A pipe, a socket or a device. It is never opened.
    Other,
}

/// What the system stores about a file or directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceStat {
    /// Always `stat`.
    pub kind: String,
    pub path: String,
    #[serde(rename = "type")]
    pub entry: EntryKind,
    pub size_bytes: u64,
    /// When the content changed, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// The entries of a directory, by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceListing {
    /// Always `list`.
    pub kind: String,
    pub path: String,
    pub entries: Vec<WorkspaceEntry>,
    /// Whether the directory has more entries.
    pub truncated: bool,
    /// Always null: this server applies no ignore rules.
    pub matched_ignore: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceEntry {
    pub name: String,
    pub kind: EntryKind,
    /// Always false: this server applies no ignore rules.
    pub ignored: bool,
}

/// The paths that match a pattern, relative to the workspace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceGlob {
    /// Always `glob`.
    pub kind: String,
    pub pattern: String,
    pub cwd: String,
    pub matches: Vec<String>,
    pub count: u64,
    /// Whether the search ended at one of its bounds: results, entries visited, depth or time.
    pub truncated: bool,
    pub duration_ms: u64,
}

/// Whether a write makes a new file or replaces one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    Create,
    Replace,
}

/// A text file to write.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WriteWorkspaceFile {
    #[schema(min_length = 1, max_length = 4096)]
    pub path: String,
    #[schema(max_length = 5242880)]
    pub content: String,
    pub mode: WriteMode,
    /// The digest of the file that is replaced. Required to replace one.
    #[serde(default)]
    #[schema(pattern = "^sha256:[0-9a-f]{64}$", max_length = 71)]
    pub expected_hash: Option<String>,
    /// Whether the file starts with a byte order mark. By default, as the file that is replaced.
    #[serde(default)]
    pub bom: Option<bool>,
    /// `utf-8`.
    #[serde(default)]
    #[schema(max_length = 32)]
    pub encoding: Option<String>,
    /// How the lines of the file end. By default, as those of the file that is replaced.
    #[serde(default)]
    pub line_ending: Option<LineEnding>,
}

/// A text that is replaced in a file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EditWorkspaceFile {
    #[schema(min_length = 1, max_length = 4096)]
    pub path: String,
    /// Must occur exactly once.
    #[schema(min_length = 1, max_length = 5242880)]
    pub old_text: String,
    #[schema(max_length = 5242880)]
    pub new_text: String,
    /// The digest of the file that is edited.
    #[schema(pattern = "^sha256:[0-9a-f]{64}$", max_length = 71)]
    pub expected_hash: String,
}

/// A file after a write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WrittenWorkspaceFile {
    /// Always `file_write`.
    pub kind: String,
    pub path: String,
    pub mode: WriteMode,
    pub created: bool,
    pub size_bytes: u64,
    pub hash: String,
    pub encoding: String,
    pub bom: bool,
    pub line_ending: LineEnding,
    /// Always null: this server applies no ignore rules.
    pub matched_ignore: Option<String>,
}

/// A file after an edit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EditedWorkspaceFile {
    /// Always `file_edit`.
    pub kind: String,
    pub path: String,
    /// Always 1.
    pub replacements: u64,
    pub size_bytes: u64,
    pub hash: String,
    pub encoding: String,
    pub bom: bool,
    pub line_ending: LineEnding,
    /// Always null: this server applies no ignore rules.
    pub matched_ignore: Option<String>,
}

/// A whole number of a query within its bounds.
fn bounded(name: &str, value: Option<u64>, least: u64, most: u64) -> Result<Option<u64>, crate::Failure> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(file_failure(FileError::Parse, format!("{name} must be from {least} to {most}")))
        }
        value => Ok(value),
    }
}

impl ReadFileQuery {
    /// The part of the text that is requested.
    pub fn window(&self) -> Result<TextRequest, crate::Failure> {
        let max_bytes = bounded("maxBytes", self.max_bytes, 1, FILE_READ_BYTES_MAX as u64)?;
        let line = bounded("line", self.line, 1, SAFE_INTEGER_MAX)?;
        let limit = bounded("limit", self.limit, 1, FILE_LINES_MAX as u64)?;
        Ok(TextRequest { max_bytes, line, limit })
    }
}

impl ReadBytesQuery {
    /// Where to start, and how many bytes to read.
    pub fn window(&self) -> Result<(u64, usize), crate::Failure> {
        let offset = bounded("offset", self.offset, 0, SAFE_INTEGER_MAX)?.unwrap_or(0);
        let most = FILE_READ_BYTES_MAX as u64;
        let bytes = bounded("maxBytes", self.max_bytes, 1, most)?.unwrap_or(FILE_WINDOW_BYTES_DEFAULT as u64);
        Ok((offset, bytes as usize))
    }
}

impl GlobQuery {
    pub fn results_max(&self) -> Result<usize, crate::Failure> {
        let most = GLOB_RESULTS_MAX as u64;
        Ok(bounded("maxResults", self.max_results, 1, most)?.map_or(GLOB_RESULTS_DEFAULT, |most| most as usize))
    }
}

impl WriteWorkspaceFile {
    /// Checks everything that needs no file system. Returns how the text is to be encoded.
    pub fn check(&self) -> Result<TextWrite, crate::Failure> {
        let is_utf8 = |name: &String| ["utf-8", "utf8"].iter().any(|known| name.eq_ignore_ascii_case(known));
        if !self.encoding.as_ref().is_none_or(is_utf8) {
            return Err(file_failure(FileError::Parse, "encoding: files are written as utf-8"));
        }
        self.expected_hash.as_deref().map(check_content_hash).transpose()?;
        if self.mode == WriteMode::Replace && self.expected_hash.is_none() {
            return Err(file_failure(FileError::Parse, "expectedHash is required to replace a file"));
        }
        Ok(TextWrite { bom: self.bom, line_ending: self.line_ending })
    }
}

impl EditWorkspaceFile {
    /// Checks everything that needs no file system.
    pub fn check(&self) -> Result<(), crate::Failure> {
        check_content_hash(&self.expected_hash)?;
        match self.old_text.is_empty() {
            true => Err(file_failure(FileError::Parse, "oldText must not be empty")),
            false => Ok(()),
        }
    }
}
