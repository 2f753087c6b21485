use std::io::{Read, Write};

use super::*;

/// Not random, so that failures repeat.
fn numbers() -> impl FnMut(&mut [u8]) {
    let mut next = 0u8;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            next = next.wrapping_mul(5).wrapping_add(11);
            *byte = next;
        }
    }
}

fn encrypt(lock: &Lock, text: &[u8]) -> Vec<u8> {
    let mut fill = numbers();
    let mut encryptor = AgeEncryptor::start(vec![], lock, &mut fill).unwrap();
    encryptor.write_all(text).unwrap();
    encryptor.finish().unwrap()
}

fn decrypt(unlock: &Unlock, file: &[u8]) -> Result<Vec<u8>, AgeError> {
    let mut text = vec![];
    AgeDecryptor::start(file, unlock)?.read_to_end(&mut text)?;
    Ok(text)
}

fn identity(seed: u8) -> AgeIdentity {
    AgeIdentity::generate(&mut |bytes: &mut [u8]| bytes.fill(seed))
}

#[test]
fn a_file_is_opened_by_each_of_its_recipients_only() {
    let lock = Lock::Recipients(vec![identity(1).recipient(), identity(2).recipient()]);
    // Around the size of a chunk.
    for length in [0, 1, 65_535, 65_536, 65_537, 131_072, 200_000] {
        let text = vec![7; length];
        let file = encrypt(&lock, &text);
        assert!(file.starts_with(MAGIC));
        for seed in [1, 2] {
            assert_eq!(decrypt(&Unlock::Identities(vec![identity(9), identity(seed)]), &file), Ok(text.clone()));
        }
        assert_eq!(decrypt(&Unlock::Identities(vec![identity(3)]), &file), Err(AgeError::WrongKey));
    }
}

#[test]
fn a_passphrase_opens_its_file_only() {
    let words = |words: &str| Zeroizing::new(words.to_owned());
    let file = encrypt(&Lock::Passphrase(words("four short plain words")), b"text");
    assert_eq!(decrypt(&Unlock::Passphrase(words("four short plain words")), &file), Ok(b"text".to_vec()));
    assert_eq!(decrypt(&Unlock::Passphrase(words("four short plain word")), &file), Err(AgeError::WrongKey));
    assert_eq!(decrypt(&Unlock::Identities(vec![identity(1)]), &file), Err(AgeError::NeedsPassphrase));
    let other = encrypt(&Lock::Recipients(vec![identity(1).recipient()]), b"text");
    assert_eq!(decrypt(&Unlock::Passphrase(words("any")), &other), Err(AgeError::NeedsIdentity));
    let costly = String::from_utf8_lossy(&file[..80]).replace(" 18\n", " 23\n").into_bytes();
    assert_eq!(
        decrypt(&Unlock::Passphrase(words("any")), &[&costly[..], &file[80..]].concat()),
        Err(AgeError::TooCostly)
    );
}

#[test]
fn a_changed_or_missing_byte_is_detected() {
    let unlock = || Unlock::Identities(vec![identity(1)]);
    let file = encrypt(&Lock::Recipients(vec![identity(1).recipient()]), &[7; 70_000]);
    let sampled = (0..300).chain((300..file.len()).step_by(997)).chain(file.len() - 20..file.len());
    for at in sampled {
        let mut changed = file.clone();
        changed[at] ^= 1;
        assert!(decrypt(&unlock(), &changed).is_err(), "byte {at}");
        assert!(decrypt(&unlock(), &file[..at]).is_err(), "cut at {at}");
    }
    assert!(decrypt(&unlock(), &[&file[..], b"x"].concat()).is_err(), "something was appended");
}

/// The keys of the format's own examples.
#[test]
fn keys_are_written_as_the_tools_of_age_write_them() {
    let text = "AGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPYYSJZGFPQ4EGAEX";
    let known: AgeIdentity = text.parse().unwrap();
    assert_eq!(*known.to_text(), text);
    let recipient = "age1zvkyg2lqzraa2lnjvqej32nkuu0ues2s82hzrye869xeexvn73equnujwj";
    assert_eq!(known.recipient().to_string(), recipient);
    assert_eq!(recipient.parse(), Ok(known.recipient()));
    let upper = recipient.to_ascii_uppercase();
    for wrong in [&recipient[..60], &recipient.replace("wj", "wk"), text, "", &upper] {
        assert_eq!(wrong.parse::<AgeRecipient>(), Err(()), "{wrong}");
    }
    assert!(recipient.parse::<AgeIdentity>().is_err());
}
