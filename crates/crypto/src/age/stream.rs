//! The payload: chunks of 64 KiB, each sealed with its number and whether it is the last, so that chunks cannot be
//! exchanged, repeated or cut off.

use std::io::{self, Read, Write};

use ring::aead::{Aad, LessSafeKey, Nonce};
use zeroize::Zeroizing;

use super::{
    AgeError, Lock,
    header::{self, FILE_KEY_BYTES, FileKey, Unlock, cipher, derive},
};
use crate::Fill;

const CHUNK_BYTES: usize = 64 * 1024;
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 16;

fn payload_key(file_key: &FileKey, nonce: &[u8]) -> Result<LessSafeKey, AgeError> {
    cipher(&derive(&file_key[..], nonce, b"payload"))
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = is_last.into();
    Nonce::assume_unique_for_key(bytes)
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, AgeError::Malformed)
}

/// Encrypts what is written to it. [`AgeEncryptor::finish`] writes the last chunk; without it the file does not decrypt.
pub struct AgeEncryptor<W> {
    writer: W,
    key: LessSafeKey,
    number: u64,
    chunk: Vec<u8>,
}

impl<W: Write> AgeEncryptor<W> {
    pub fn start(mut writer: W, lock: &Lock, fill: Fill<'_>) -> Result<Self, AgeError> {
        let mut file_key = Zeroizing::new([0; FILE_KEY_BYTES]);
        fill(&mut file_key[..]);
        let mut nonce = [0; NONCE_BYTES];
        fill(&mut nonce);
        writer.write_all(&header::write(lock, &file_key, fill)?)?;
        writer.write_all(&nonce)?;
        let key = payload_key(&file_key, &nonce)?;
        Ok(Self { writer, key, number: 0, chunk: Vec::with_capacity(CHUNK_BYTES + TAG_BYTES) })
    }

    fn flush_chunk(&mut self, is_last: bool) -> io::Result<()> {
        let nonce = nonce(self.number, is_last);
        self.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk).map_err(|_| damaged())?;
        self.writer.write_all(&self.chunk)?;
        self.chunk.clear();
        self.number += 1;
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.flush_chunk(true)?;
        Ok(self.writer)
    }
}

impl<W: Write> Write for AgeEncryptor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Only when more follows: the last chunk may be a full one.
        if self.chunk.len() == CHUNK_BYTES && !bytes.is_empty() {
            self.flush_chunk(false)?;
        }
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Decrypts a file. No byte is returned before its chunk was authenticated; a file that was cut off ends with an error.
pub struct AgeDecryptor<R> {
    reader: R,
    key: LessSafeKey,
    number: u64,
    /// The decrypted chunk, and how much of it was returned.
    chunk: Vec<u8>,
    taken: usize,
    /// The first byte of the next chunk: it shows that the current one is not the last.
    next: Option<u8>,
    is_done: bool,
}

impl<R: Read> AgeDecryptor<R> {
    pub fn start(mut reader: R, unlock: &Unlock) -> Result<Self, AgeError> {
        let file_key = header::read(&mut reader, unlock)?;
        let mut nonce = [0; NONCE_BYTES];
        reader.read_exact(&mut nonce)?;
        let key = payload_key(&file_key, &nonce)?;
        Ok(Self { reader, key, number: 0, chunk: vec![], taken: 0, next: None, is_done: false })
    }

    fn read_chunk(&mut self) -> io::Result<()> {
        let whole = CHUNK_BYTES + TAG_BYTES;
        let mut sealed = Vec::with_capacity(whole);
        sealed.extend(self.next.take());
        let wanted = (whole - sealed.len()) as u64;
        self.reader.by_ref().take(wanted).read_to_end(&mut sealed)?;
        if sealed.len() == whole {
            let mut byte = vec![];
            self.reader.by_ref().take(1).read_to_end(&mut byte)?;
            self.next = byte.first().copied();
        }
        let is_last = self.next.is_none();
        let opened = self.key.open_in_place(nonce(self.number, is_last), Aad::empty(), &mut sealed);
        let length = opened.map_err(|_| damaged())?.len();
        // Only an empty file ends with an empty chunk.
        if length == 0 && self.number > 0 {
            return Err(damaged());
        }
        sealed.truncate(length);
        (self.chunk, self.taken, self.is_done) = (sealed, 0, is_last);
        self.number += 1;
        Ok(())
    }
}

impl<R: Read> Read for AgeDecryptor<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len() && !self.is_done {
            self.read_chunk()?;
        }
        let taken = buffer.len().min(self.chunk.len() - self.taken);
        buffer[..taken].copy_from_slice(&self.chunk[self.taken..self.taken + taken]);
        self.taken += taken;
        Ok(taken)
    }
}
