//! Why a file could not be read or written. Clients match `errorKind`.

use crate::{Failure, FailureKind, Rule};

/// The detail of a failure that clients of files match.
pub const ERROR_KIND: &str = "errorKind";

/// What went wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The path leads out of the workspace by itself.
    Outside,
    /// A symbolic link on the path leads out of the workspace, or the file to write is one.
    Symlink,
    /// There is no such file or directory.
    NotFound,
    /// The file is not text.
    Binary,
    /// The file is larger than the operation can read or write.
    TooLarge,
    /// The file exists and was to be created.
    Exists,
    /// The file is not what the caller last read.
    HashMismatch,
    /// The text to replace does not occur.
    TextNotFound,
    /// The text to replace occurs more than once.
    Ambiguous,
    /// The system does not allow access.
    Denied,
    /// The request cannot be understood, or names something that is not a file.
    Parse,
    /// A read or write failed.
    Io,
    /// A fault of the server.
    Internal,
}

impl FileError {
    pub const ALL: [Self; 13] = [
        Self::Outside,
        Self::Symlink,
        Self::NotFound,
        Self::Binary,
        Self::TooLarge,
        Self::Exists,
        Self::HashMismatch,
        Self::TextNotFound,
        Self::Ambiguous,
        Self::Denied,
        Self::Parse,
        Self::Io,
        Self::Internal,
    ];

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outside => "path_outside_workspace",
            Self::Symlink => "symlink_escape",
            Self::NotFound => "path_not_found",
            Self::Binary => "binary_file",
            Self::TooLarge => "file_too_large",
            Self::Exists => "file_already_exists",
            Self::HashMismatch => "hash_mismatch",
            Self::TextNotFound => "text_not_found",
            Self::Ambiguous => "ambiguous_text_match",
            Self::Denied => "permission_denied",
            Self::Parse => "parse_error",
            Self::Io => "io_error",
            Self::Internal => "internal_error",
        }
    }

    fn rule(self) -> Rule {
        match self {
            Self::Outside | Self::Symlink | Self::Parse => Rule::FilePath,
            Self::NotFound => Rule::FileUnknown,
            Self::Binary | Self::TextNotFound | Self::Ambiguous => Rule::FileContent,
            Self::TooLarge => Rule::FileSize,
            Self::Exists | Self::HashMismatch => Rule::FileConflict,
            Self::Denied => Rule::FileDenied,
            Self::Io | Self::Internal => Rule::FileFault,
        }
    }

    fn hint(self) -> Option<&'static str> {
        match self {
            Self::HashMismatch => Some("read the file again and retry with its hash"),
            Self::Exists => Some("read the file and use mode replace"),
            Self::Binary => Some("read it with GET /file/bytes"),
            Self::Ambiguous => Some("include more of the text around the place"),
            _ => None,
        }
    }
}

/// The failure of a request about files.
pub fn file_failure(error: FileError, message: impl Into<String>) -> Failure {
    let failure = Failure::rule(error.rule(), message).detail(ERROR_KIND, error.as_str());
    let failure = match error.hint() {
        Some(hint) => failure.detail("hint", hint),
        None => failure,
    };
    match error {
        FileError::Internal => failure.with_kind(FailureKind::Internal),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_the_status_that_clients_expect() {
        let statuses = FileError::ALL.map(|error| (error.as_str(), file_failure(error, "x").kind.row().status));
        let expected = [
            ("path_outside_workspace", 400),
            ("symlink_escape", 400),
            ("path_not_found", 404),
            ("binary_file", 422),
            ("file_too_large", 413),
            ("file_already_exists", 409),
            ("hash_mismatch", 409),
            ("text_not_found", 422),
            ("ambiguous_text_match", 422),
            ("permission_denied", 403),
            ("parse_error", 400),
            ("io_error", 503),
            ("internal_error", 500),
        ];
        assert_eq!(statuses, expected);
    }
}
