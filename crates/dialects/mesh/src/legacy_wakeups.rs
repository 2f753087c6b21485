//! Words of wake-ups in the format before version 2, as far as they belong to the mesh.

use ostler_server::dialect::LegacyWord;

/// The key in an urgent word that begins with this sign.
pub(crate) fn urgent_key(word: &LegacyWord, sign: char) -> Option<String> {
    match word {
        LegacyWord::Urgent(name) => name.strip_prefix(sign).map(str::to_owned),
        _ => None,
    }
}
