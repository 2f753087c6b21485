//! The header: the file's key, wrapped for each recipient or by a passphrase, and a code over the whole of it.

use std::io::Read;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use hkdf::Hkdf;
use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    hmac,
};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::{AgeError, AgeIdentity, AgeRecipient, Lock, MAGIC, WORK, WORK_MAX};
use crate::Fill;

pub(super) type FileKey = Zeroizing<[u8; FILE_KEY_BYTES]>;

pub(super) const FILE_KEY_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
const X25519: &str = "X25519";
const X25519_INFO: &[u8] = b"age-encryption.org/v1/X25519";
const SCRYPT: &str = "scrypt";
const SCRYPT_SALT: &[u8] = b"age-encryption.org/v1/scrypt";
/// A header has a line or two for each recipient.
const HEADER_BYTES_MAX: usize = 1 << 20;
const COLUMNS: usize = 64;

/// What a file may be opened with.
pub enum Unlock {
    Identities(Vec<AgeIdentity>),
    Passphrase(Zeroizing<String>),
}

struct Stanza {
    arguments: Vec<String>,
    body: Vec<u8>,
}

pub(super) fn derive(secret: &[u8], salt: &[u8], info: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    // It only fails for keys of more than 8 kB.
    let _ = Hkdf::<Sha256>::new(Some(salt), secret).expand(info, &mut key[..]);
    key
}

pub(super) fn cipher(key: &[u8; 32]) -> Result<LessSafeKey, AgeError> {
    UnboundKey::new(&CHACHA20_POLY1305, key).map(LessSafeKey::new).map_err(|_| AgeError::Malformed)
}

/// Each wrapping key is used once, so its nonce is constant.
fn wrap(key: &[u8; 32], file_key: &FileKey) -> Result<Vec<u8>, AgeError> {
    let mut body = file_key.to_vec();
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    cipher(key)?
        .seal_in_place_append_tag(nonce, Aad::empty(), &mut body)
        .map(|()| body)
        .map_err(|_| AgeError::Malformed)
}

fn unwrap(key: &[u8; 32], body: &[u8]) -> Result<Option<FileKey>, AgeError> {
    // Other lengths are rejected before decryption, as the format requires.
    if body.len() != FILE_KEY_BYTES + TAG_BYTES {
        return Err(AgeError::Malformed);
    }
    let mut body = Zeroizing::new(body.to_vec());
    let opened = cipher(key)?.open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut body);
    let Ok(opened) = opened else { return Ok(None) };
    let mut file_key = Zeroizing::new([0; FILE_KEY_BYTES]);
    file_key.copy_from_slice(opened);
    Ok(Some(file_key))
}

fn passphrase_key(passphrase: &str, salt: &[u8], work: u8) -> Result<Zeroizing<[u8; 32]>, AgeError> {
    let params = scrypt::Params::new(work, 8, 1).map_err(|_| AgeError::Malformed)?;
    let mut key = Zeroizing::new([0; 32]);
    scrypt::scrypt(passphrase.as_bytes(), &[SCRYPT_SALT, salt].concat(), &params, &mut key[..])
        .map_err(|_| AgeError::Malformed)?;
    Ok(key)
}

fn for_recipient(recipient: &AgeRecipient, file_key: &FileKey, fill: Fill<'_>) -> Result<Stanza, AgeError> {
    let ephemeral = AgeIdentity::generate(fill);
    let share = ephemeral.recipient().0;
    let shared = ephemeral.shared_secret(&recipient.0).ok_or(AgeError::Malformed)?;
    let key = derive(&shared[..], &[share, recipient.0].concat(), X25519_INFO);
    Ok(Stanza { arguments: vec![X25519.into(), BASE64.encode(share)], body: wrap(&key, file_key)? })
}

/// The header for a new file.
pub(super) fn write(lock: &Lock, file_key: &FileKey, fill: Fill<'_>) -> Result<Vec<u8>, AgeError> {
    let stanzas = match lock {
        Lock::Recipients(recipients) => recipients
            .iter()
            .map(|recipient| for_recipient(recipient, file_key, fill))
            .collect::<Result<Vec<_>, _>>()?,
        Lock::Passphrase(passphrase) => {
            let mut salt = [0; SALT_BYTES];
            fill(&mut salt);
            let body = wrap(&*passphrase_key(passphrase, &salt, WORK)?, file_key)?;
            vec![Stanza { arguments: vec![SCRYPT.into(), BASE64.encode(salt), WORK.to_string()], body }]
        }
    };
    let mut text = String::from_utf8_lossy(MAGIC).into_owned();
    for stanza in stanzas {
        text.push_str(&format!("-> {}\n", stanza.arguments.join(" ")));
        let body = BASE64.encode(&stanza.body);
        // The last line is always a short one, even if it is empty.
        let full = body.len() / COLUMNS * COLUMNS;
        (0..full).step_by(COLUMNS).for_each(|at| text.push_str(&format!("{}\n", &body[at..at + COLUMNS])));
        text.push_str(&format!("{}\n", &body[full..]));
    }
    text.push_str("---");
    let code = BASE64.encode(hmac::sign(&mac_key(file_key), text.as_bytes()));
    text.push_str(&format!(" {code}\n"));
    Ok(text.into_bytes())
}

fn mac_key(file_key: &FileKey) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &derive(&file_key[..], b"", b"header")[..])
}

/// Reads the header and unwraps the file's key. The reader is left at the payload.
pub(super) fn read(reader: &mut impl Read, unlock: &Unlock) -> Result<FileKey, AgeError> {
    let mut raw = vec![];
    if next_line(reader, &mut raw)?.as_bytes() != MAGIC.trim_ascii_end() {
        return Err(AgeError::Malformed);
    }
    let mut stanzas: Vec<Stanza> = vec![];
    let code = loop {
        let line = next_line(reader, &mut raw)?;
        if let Some(code) = line.strip_prefix("--- ") {
            break BASE64.decode(code).map_err(|_| AgeError::Malformed)?;
        }
        let arguments = line.strip_prefix("-> ").ok_or(AgeError::Malformed)?;
        let arguments: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
        let mut body = String::new();
        loop {
            let line = next_line(reader, &mut raw)?;
            body.push_str(&line);
            if line.len() > COLUMNS {
                return Err(AgeError::Malformed);
            }
            if line.len() < COLUMNS {
                break;
            }
        }
        stanzas.push(Stanza { arguments, body: BASE64.decode(body).map_err(|_| AgeError::Malformed)? });
    };
    let file_key = open(&stanzas, unlock)?;
    // The code covers everything up to the three dashes.
    let covered = raw.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
    hmac::verify(&mac_key(&file_key), &raw[..covered], &code).map_err(|_| AgeError::Malformed)?;
    Ok(file_key)
}

fn open(stanzas: &[Stanza], unlock: &Unlock) -> Result<FileKey, AgeError> {
    let is_scrypt = |stanza: &Stanza| stanza.arguments.first().is_some_and(|kind| kind == SCRYPT);
    let passphrase = stanzas.iter().find(|stanza| is_scrypt(stanza));
    // A passphrase is the only recipient: otherwise those who know it could not be sure that the file is from one of them.
    if passphrase.is_some() && stanzas.len() > 1 {
        return Err(AgeError::Malformed);
    }
    match (unlock, passphrase) {
        (Unlock::Identities(_), Some(_)) => Err(AgeError::NeedsPassphrase),
        (Unlock::Passphrase(_), None) => Err(AgeError::NeedsIdentity),
        (Unlock::Passphrase(words), Some(stanza)) => {
            let [_, salt, work] = &stanza.arguments[..] else { return Err(AgeError::Malformed) };
            let salt = BASE64.decode(salt).ok().filter(|salt| salt.len() == SALT_BYTES).ok_or(AgeError::Malformed)?;
            let is_plain = work.bytes().all(|byte| byte.is_ascii_digit()) && !work.starts_with('0');
            let work: u8 = work.parse().ok().filter(|_| is_plain).ok_or(AgeError::Malformed)?;
            if work > WORK_MAX {
                return Err(AgeError::TooCostly);
            }
            unwrap(&*passphrase_key(words, &salt, work)?, &stanza.body)?.ok_or(AgeError::WrongKey)
        }
        (Unlock::Identities(identities), None) => {
            for stanza in stanzas.iter().filter(|stanza| stanza.arguments[0] == X25519) {
                let [_, share] = &stanza.arguments[..] else { return Err(AgeError::Malformed) };
                let share: [u8; 32] =
                    BASE64.decode(share).ok().and_then(|share| share.try_into().ok()).ok_or(AgeError::Malformed)?;
                for identity in identities {
                    let shared = identity.shared_secret(&share).ok_or(AgeError::Malformed)?;
                    let key = derive(&shared[..], &[share, identity.recipient().0].concat(), X25519_INFO);
                    if let Some(file_key) = unwrap(&key, &stanza.body)? {
                        return Ok(file_key);
                    }
                }
            }
            Err(AgeError::WrongKey)
        }
    }
}

/// The next line without its end, which is also appended to `raw`.
fn next_line(reader: &mut impl Read, raw: &mut Vec<u8>) -> Result<String, AgeError> {
    let start = raw.len();
    loop {
        let mut byte = [0];
        reader.read_exact(&mut byte)?;
        raw.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
        if raw.len() > HEADER_BYTES_MAX || !(b' '..=b'~').contains(&byte[0]) {
            return Err(AgeError::Malformed);
        }
    }
    String::from_utf8(raw[start..raw.len() - 1].to_vec()).map_err(|_| AgeError::Malformed)
}
