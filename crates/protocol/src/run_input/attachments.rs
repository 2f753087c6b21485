//! Attachments: pictures that people put into their messages. The type of a file is determined by its bytes; its
//! location is a path that names its owner and its thread. Front ends see neither except in a signed URL that expires.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{json::hex, sha256::sha256};

pub const ATTACHMENT_BYTES_MAX: usize = 10 * 1024 * 1024;
/// What a form may hold beside its file: boundaries, headers and two names.
pub const ATTACHMENT_FORM_BYTES_MAX: usize = 16 * 1024;
/// Files one user may have, whatever their size.
pub const ATTACHMENTS_PER_USER_MAX: i64 = 10_000;
/// What every path begins with.
pub const ROOT: &str = "agent-inputs";
/// A run id longer than this, or with other characters, is replaced by its digest in a path.
const RUN_CHARS_MAX: usize = 64;

/// The pictures we take. No SVG: it is a program as much as a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageType {
    Png,
    Jpeg,
    Gif,
    Webp,
}

impl ImageType {
    pub const ALL: [Self; 4] = [Self::Png, Self::Jpeg, Self::Gif, Self::Webp];

    pub fn mime_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
        }
    }

    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Gif => "gif",
            Self::Webp => "webp",
        }
    }

    /// The type of the bytes, whatever type was declared for them.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ => None,
        }
    }

    pub fn parse(mime_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|image| image.mime_type() == mime_type)
    }
}

/// `agent-inputs/{user}/{thread}/{run}/{file}`. Whatever reads as one has no way out of its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPath {
    pub owner: String,
    pub thread_id: String,
    run: String,
    file: String,
}

impl ObjectPath {
    /// The path of a new file. `None` if the thread's id is invalid.
    pub fn new(owner: &str, thread_id: &str, run_id: &str, file: Uuid, image: ImageType) -> Option<Self> {
        let plain = run_id.len() <= RUN_CHARS_MAX && is_plain(run_id);
        let run = if plain { run_id.to_owned() } else { hex(&sha256(run_id.as_bytes()))[..32].to_owned() };
        let file = format!("{}.{}", file.simple(), image.extension());
        // Back and forth: a path that is made is one that can be read.
        Self { owner: owner.to_owned(), thread_id: thread_id.to_owned(), run, file }.to_string().parse().ok()
    }

    /// What the file is, by its name, which is ours.
    pub fn image_type(&self) -> Option<ImageType> {
        let extension = self.file.rsplit_once('.')?.1;
        ImageType::ALL.into_iter().find(|image| image.extension() == extension)
    }

    pub fn file_name(&self) -> &str {
        &self.file
    }
}

fn is_plain(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ROOT}/{}/{}/{}/{}", self.owner, self.thread_id, self.run, self.file)
    }
}

/// The text is not one of our paths.
#[derive(Debug, PartialEq)]
pub struct NoPath;

impl FromStr for ObjectPath {
    type Err = NoPath;

    fn from_str(text: &str) -> Result<Self, NoPath> {
        let parts: Vec<&str> = text.split('/').collect();
        let &[ROOT, owner, thread_id, run, file] = parts.as_slice() else { return Err(NoPath) };
        let (stem, extension) = file.rsplit_once('.').ok_or(NoPath)?;
        let known = ImageType::ALL.iter().any(|image| image.extension() == extension);
        let thread = is_plain(thread_id) && Uuid::parse_str(thread_id).is_ok();
        if !(known && thread && [owner, run, stem].into_iter().all(is_plain)) {
            return Err(NoPath);
        }
        let owned = str::to_owned;
        Ok(Self { owner: owned(owner), thread_id: owned(thread_id), run: owned(run), file: owned(file) })
    }
}

/// A file that was taken in. Its URL can be put into a message as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Attachment {
    pub bucket: String,
    pub path: String,
    pub mime_type: String,
    /// Signed, and good for a while.
    pub url: String,
}

/// What a form sends.
#[derive(ToSchema)]
pub struct AttachmentForm {
    /// A PNG, JPEG, GIF or WebP picture of at most 10 MiB.
    #[schema(value_type = String, format = Binary)]
    pub file: Vec<u8>,
    /// The thread that it is for, a UUID; it need not be there yet.
    pub thread_id: String,
    /// The run that it is for, as the client will name it.
    pub run_id: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SignUrl {
    pub bucket: String,
    pub path: String,
}

/// A stored file's URL, signed afresh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignedUrl {
    pub bucket: String,
    pub path: String,
    pub url: String,
}

/// What proves that a URL was signed here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Proof {
    /// When it ends, in seconds since 1970.
    pub expires: i64,
    pub signature: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";

    #[test]
    fn a_picture_has_the_type_of_its_bytes() {
        let cases: [(&[u8], _); 9] = [
            (b"\x89PNG\r\n\x1a\n....", Some(ImageType::Png)),
            (b"\xff\xd8\xff\xe0....", Some(ImageType::Jpeg)),
            (b"GIF89a....", Some(ImageType::Gif)),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", Some(ImageType::Webp)),
            (b"RIFF\x01\x02\x03\x04WAVEfmt ", None),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
            (b"<!doctype html>", None),
            (b"\x89PNG", None),
            (b"", None),
        ];
        for (bytes, expected) in cases {
            assert_eq!(ImageType::sniff(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_path_reads_back_and_has_no_way_out() {
        let path = ObjectPath::new("usr_1", THREAD, "run-001", Uuid::nil(), ImageType::Jpeg).unwrap();
        let text = format!("agent-inputs/usr_1/{THREAD}/run-001/00000000000000000000000000000000.jpg");
        assert_eq!((path.to_string(), text.parse()), (text.clone(), Ok(path.clone())));
        assert_eq!(path.image_type(), Some(ImageType::Jpeg));
        for run_id in ["../../etc", "läuft", "a/b", "", ".", "%2e%2e", &"x".repeat(65)] {
            let path = ObjectPath::new("local", THREAD, run_id, Uuid::nil(), ImageType::Png).unwrap().to_string();
            assert_eq!((path.split('/').count(), path.contains("..")), (5, false), "{run_id} → {path}");
        }
        let one = ObjectPath::new("local", THREAD, "a/b", Uuid::nil(), ImageType::Png);
        assert_ne!(one, ObjectPath::new("local", THREAD, "a/c", Uuid::nil(), ImageType::Png));
        for bad in [
            "",
            "agent-inputs",
            "/etc/passwd",
            "agent-inputs/../../../etc/passwd.png",
            &text.replace("usr_1", ".."),
            &text.replace("usr_1", ""),
            &text.replace("usr_1", "a%2fb"),
            &text.replace("run-001", "a/b"),
            &text.replace("run-001", "."),
            &text.replace(".jpg", ".svg"),
            &text.replace(".jpg", ""),
            &text.replace(THREAD, "not-a-thread"),
            &text.replace("agent-inputs", "agent-outputs"),
            &format!("/{text}"),
            &format!("{text}/"),
            &format!("{text}\0"),
            &text.replace('/', "\\"),
        ] {
            assert_eq!(bad.parse::<ObjectPath>(), Err(NoPath), "{bad}");
        }
        assert_eq!(ObjectPath::new("local", "../x", "run", Uuid::nil(), ImageType::Png), None);
    }
}
