//! Speech to text: a recording that a front end sends, and its transcript. Only uncompressed WAV is accepted: its size is known,
//! and every speech endpoint reads it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, Rule};

/// About five minutes of speech at 16 kHz.
pub const AUDIO_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Of the speech endpoint's whole reply.
pub const TRANSCRIPT_BYTES_MAX: usize = 256 * 1024;

/// What a form sends.
#[derive(ToSchema)]
pub struct TranscriptionForm {
    /// A WAV recording of at most 10 MiB.
    #[schema(value_type = String, format = Binary)]
    pub file: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Transcript {
    pub text: String,
}

/// Rejects what is no WAV recording, or has no sound in it.
pub fn check_wav(bytes: &[u8]) -> Result<(), Failure> {
    let empty = || Failure::rule(Rule::AgentAudioEmpty, "the recording is empty");
    let unsupported = || Failure::rule(Rule::AgentAudioUnsupportedFormat, "the recording is not a WAV file");
    if bytes.is_empty() {
        return Err(empty());
    }
    if bytes.len() < 12 || &bytes[..4] != b"RIFF" || &bytes[8..12] != b"WAVE" {
        return Err(unsupported());
    }
    let (mut rest, mut has_format) = (&bytes[12..], false);
    while let Some((head, body)) = rest.split_at_checked(8) {
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        match &head[..4] {
            b"fmt " => has_format = size >= 16,
            b"data" if !has_format => return Err(unsupported()),
            // A recorder that streams does not know the size in advance, and writes its largest value.
            b"data" => return if size.min(body.len()) == 0 { Err(empty()) } else { Ok(()) },
            _ => {}
        }
        // Chunks begin at even places.
        rest = body.get(size.saturating_add(size % 2)..).unwrap_or_default();
    }
    Err(if has_format { empty() } else { unsupported() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(chunks: &[(&[u8; 4], u32, &[u8])]) -> Vec<u8> {
        let mut bytes = b"RIFF\0\0\0\0WAVE".to_vec();
        for (name, size, body) in chunks {
            bytes.extend(*name);
            bytes.extend(size.to_le_bytes());
            bytes.extend(*body);
        }
        bytes
    }

    #[test]
    fn a_recording_is_a_wav_file_with_sound() {
        let format: (&[u8; 4], u32, &[u8]) = (b"fmt ", 16, &[0; 16]);
        for sound in
            [wav(&[format, (b"data", 2, &[1, 2])]), wav(&[format, (b"LIST", 3, &[0; 4]), (b"data", u32::MAX, &[1, 2])])]
        {
            assert!(check_wav(&sound).is_ok(), "{sound:?}");
        }
        for (bytes, rule) in [
            (vec![], Rule::AgentAudioEmpty),
            (wav(&[format, (b"data", 0, &[])]), Rule::AgentAudioEmpty),
            (wav(&[format]), Rule::AgentAudioEmpty),
            (wav(&[format, (b"LIST", u32::MAX, &[])]), Rule::AgentAudioEmpty),
            (wav(&[]), Rule::AgentAudioUnsupportedFormat),
            (wav(&[(b"data", 2, &[1, 2])]), Rule::AgentAudioUnsupportedFormat),
            (b"RIFF\0\0\0\0AVI ".to_vec(), Rule::AgentAudioUnsupportedFormat),
            (b"ID3".to_vec(), Rule::AgentAudioUnsupportedFormat),
        ] {
            assert_eq!(check_wav(&bytes).unwrap_err().broken_rule(), Some(rule), "{bytes:?}");
        }
    }
}
