//! The document as it is stored beside the guides.

use std::path::PathBuf;

use crate::harness::openapi;

/// The document in `docs/generated` is what people read without a server; `OSTLER_BLESS=1` writes it again.
#[test]
fn the_stored_document_is_up_to_date() {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this test");
    let path = PathBuf::from(manifest).join("../../docs/generated/openapi.json");
    let document = openapi().clone();
    let text = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "docs/generated/openapi.json is not what the handlers make; run this with OSTLER_BLESS=1");
}
