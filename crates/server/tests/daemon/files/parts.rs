//! Parts of files that are too large to be read at once.

use ostler_protocol::daemon::files::FILE_SCAN_BYTES_MAX;

use super::*;

#[one_engine]
async fn a_part_of_a_large_file_is_read(engine: Engine) {
    let scene = Scene::set(engine).await;
    let text = "0123456789abcde\n".repeat(20_000);
    fs::write(scene.root.join("large"), &text).unwrap();
    for (query, content) in [("maxBytes=10", "0123456789"), ("line=20000&limit=1", "0123456789abcde\n")] {
        let part = scene.server.get(&format!("/file?path=large&{query}")).await.with_status(200);
        let found = (&part["content"], &part["truncated"], &part["sizeBytes"]);
        assert_eq!(found, (&json!(content), &json!(true), &json!(text.len())), "{query}");
        assert_eq!(part["hash"], content_hash(text.as_bytes()), "of the whole file");
    }
    let rest = scene.server.get("/file?path=large&line=2").await.with_status(200);
    assert_eq!((&rest["returnedBytes"], &rest["truncated"]), (&json!(FILE_READ_BYTES_MAX), &json!(true)));
    fs::write(scene.root.join("larger"), "x".repeat(FILE_SCAN_BYTES_MAX + 1)).unwrap();
    refused(&scene.server.get("/file?path=larger&maxBytes=10").await, "file_too_large", 413);
}
