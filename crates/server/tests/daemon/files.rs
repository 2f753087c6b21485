//! Files of the workspace: read, listed, found, written and edited by clients, and nothing outside it by any client.

mod parts;

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::PathBuf,
};

use ostler_protocol::daemon::files::{FILE_READ_BYTES_MAX, FILE_WRITE_BYTES_MAX, content_hash};
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, Engine, Setup, TestServer, id, one_engine};

/// A server that is bound to a directory with a few files, beside a secret.
struct Scene {
    server: TestServer,
    root: PathBuf,
}

const TEXT: &str = "one\ntwo\nthree\n";

impl Scene {
    async fn set(engine: Engine) -> Self {
        Self::with(engine, |_| ()).await
    }

    async fn with(engine: Engine, choose: impl FnOnce(&mut Setup)) -> Self {
        let mut bound = None;
        let server = TestServer::with(engine, |setup| {
            let root = setup.config.server.data_dir.as_ref().unwrap().with_file_name("workspace");
            fs::create_dir_all(root.join("src/deep")).unwrap();
            fs::create_dir_all(root.with_file_name("outside")).unwrap();
            fs::write(root.with_file_name("outside/secret"), "secret").unwrap();
            fs::write(root.join("src/text"), TEXT).unwrap();
            fs::write(root.join("src/deep/main.rs"), "fn main() {}\r\n").unwrap();
            setup.config.server.workspace = Some(root.clone());
            bound = Some(root.canonicalize().unwrap());
            choose(setup);
        })
        .await;
        Self { server, root: bound.unwrap() }
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.root.with_file_name("outside").join(name)
    }

    async fn get(&self, route: &str, path: &str) -> Answer {
        get(&self.server, route, path).await
    }

    async fn read(&self, path: &str) -> Value {
        self.get("file", path).await.with_status(200)
    }

    async fn create(&self, path: &str, content: &str) -> Answer {
        self.server.post("/file/write", &json!({"path": path, "content": content, "mode": "create"})).await
    }

    async fn replace(&self, path: &str, content: &str, hash: &str) -> Answer {
        let body = json!({"path": path, "content": content, "mode": "replace", "expectedHash": hash});
        self.server.post("/file/write", &body).await
    }

    async fn edit(&self, path: &str, old_text: &str, hash: &str) -> Answer {
        let body = json!({"path": path, "oldText": old_text, "newText": "new", "expectedHash": hash});
        self.server.post("/file/edit", &body).await
    }

    fn stored(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn get(caller: &Caller, route: &str, path: &str) -> Answer {
    caller.get(&format!("/{route}?path={}", encoded(path))).await
}

/// Checks the form of a failure about files.
#[track_caller]
fn refused(answer: &Answer, kind: &str, status: u16) {
    assert_eq!((answer.status, &answer.body["errorKind"]), (status, &json!(kind)), "{}", answer.text);
    assert_eq!((&answer.body["status"], &answer.body["code"]), (&json!(status), &Value::Null), "{}", answer.text);
    assert!(answer.body["error"].as_str().is_some_and(|error| !error.is_empty()), "{}", answer.text);
    assert!(!answer.text.contains("secret\"") && !answer.text.contains("/outside"), "{}", answer.text);
}

#[one_engine]
async fn a_text_file_is_read_whole_or_by_lines(engine: Engine) {
    let scene = Scene::set(engine).await;
    let answer = scene.get("file", "src/text").await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    let hash = content_hash(TEXT.as_bytes());
    let whole = json!({"kind": "file", "path": "src/text", "content": TEXT, "encoding": "utf-8", "bom": false,
        "lineEnding": "lf", "sizeBytes": 14, "returnedBytes": 14, "truncated": false, "hash": hash,
        "matchedIgnore": null, "originalLineCount": null});
    assert_eq!(answer.with_status(200), whole);
    let lines = scene.server.get("/file?path=src/text&line=2&limit=1").await.with_status(200);
    assert_eq!((&lines["content"], &lines["hash"]), (&json!("two\n"), &json!(hash)));
    assert_eq!((&lines["truncated"], &lines["originalLineCount"]), (&json!(true), &json!(3)));
    let cut = scene.server.get("/file?path=src/text&maxBytes=5").await.with_status(200);
    assert_eq!(
        (&cut["content"], &cut["returnedBytes"], &cut["truncated"]),
        (&json!("one\nt"), &json!(5), &json!(true))
    );
    let absolute = scene.root.join("src/../src/deep/main.rs");
    let absolute = scene.read(absolute.to_str().unwrap()).await;
    assert_eq!((&absolute["path"], &absolute["lineEnding"]), (&json!("src/deep/main.rs"), &json!("crlf")));
    for query in ["line=0", "limit=0", "limit=2001", "maxBytes=0", "maxBytes=262145", "line=x", "line=-1", "other=1"] {
        refused(&scene.server.get(&format!("/file?path=src/text&{query}")).await, "parse_error", 400);
    }
    for query in ["", "path=", "path=%00"] {
        refused(&scene.server.get(&format!("/file?{query}")).await, "parse_error", 400);
    }
}

#[one_engine]
async fn a_path_that_is_named_like_a_secret_does_not_hide_what_is_wrong(engine: Engine) {
    let scene = Scene::set(engine).await;
    for path in ["src/password", "src/deep/db_pass", "password"] {
        let answer = scene.get("file", path).await;
        refused(&answer, "path_not_found", 404);
        let error = answer.body["error"].as_str().unwrap();
        assert!(error.contains(path) && error.contains("no such file"), "{error}");
    }
    let planted = scene.get("file", "src/password: hunter2planted").await;
    assert!(planted.status == 404 && !planted.text.contains("hunter2planted"), "{}", planted.text);
}

#[one_engine]
async fn bytes_of_any_file_are_read_by_windows(engine: Engine) {
    let scene = Scene::set(engine).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    fs::write(scene.root.join("blob"), &bytes).unwrap();
    let first = scene.get("file/bytes", "blob").await.with_status(200);
    assert_eq!((&first["returnedBytes"], &first["truncated"]), (&json!(65_536), &json!(true)));
    assert_eq!((&first["sizeBytes"], &first["hash"]), (&json!(300_000), &Value::Null));
    let window = scene.server.get("/file/bytes?path=blob&offset=1&maxBytes=3").await.with_status(200);
    assert_eq!((&window["contentBase64"], &window["offset"]), (&json!("AQID"), &json!(1)));
    let last = scene.server.get("/file/bytes?path=blob&offset=299999").await.with_status(200);
    assert_eq!((&last["returnedBytes"], &last["truncated"]), (&json!(1), &json!(false)));
    let after = scene.server.get("/file/bytes?path=blob&offset=400000").await.with_status(200);
    assert_eq!((&after["returnedBytes"], &after["contentBase64"]), (&json!(0), &json!("")));
    let whole = scene.get("file/bytes", "src/text").await.with_status(200);
    assert_eq!((&whole["kind"], &whole["hash"]), (&json!("file_bytes"), &json!(content_hash(TEXT.as_bytes()))));
    refused(&scene.server.get("/file/bytes?path=blob&maxBytes=262145").await, "parse_error", 400);
    refused(&scene.server.get("/file/bytes?path=blob&offset=9007199254740992").await, "parse_error", 400);
}

#[one_engine]
async fn directories_are_listed_and_described(engine: Engine) {
    let scene = Scene::set(engine).await;
    symlink(scene.outside(""), scene.root.join("src/away")).unwrap();
    let list = scene.get("list", "src").await.with_status(200);
    let entries = json!([{"name": "away", "kind": "symlink", "ignored": false},
        {"name": "deep", "kind": "directory", "ignored": false}, {"name": "text", "kind": "file", "ignored": false}]);
    assert_eq!(
        list,
        json!({"kind": "list", "path": "src", "entries": entries, "truncated": false, "matchedIgnore": null})
    );
    assert_eq!(scene.get("list", ".").await.with_status(200)["path"], ".");
    let stat = scene.get("stat", "src/text").await.with_status(200);
    assert_eq!((&stat["kind"], &stat["type"], &stat["sizeBytes"]), (&json!("stat"), &json!("file"), &json!(14)));
    let modified = fs::metadata(scene.root.join("src/text")).unwrap();
    assert_eq!(stat["modifiedMs"], modified.mtime() * 1_000 + modified.mtime_nsec() / 1_000_000);
    assert_eq!(scene.get("stat", "src").await.with_status(200)["type"], "directory");
    for route in ["list", "stat", "file", "file/bytes"] {
        refused(&scene.get(route, "none").await, "path_not_found", 404);
    }
    refused(&scene.get("list", "src/text").await, "parse_error", 400);
    refused(&scene.get("list", "src/text/below").await, "path_not_found", 404);
    fs::create_dir(scene.root.join("many")).unwrap();
    for n in 0..=2_000 {
        fs::write(scene.root.join(format!("many/{n}")), "").unwrap();
    }
    let many = scene.get("list", "many").await.with_status(200);
    assert_eq!((many["entries"].as_array().unwrap().len(), &many["truncated"]), (2_000, &json!(true)));
}

#[one_engine]
async fn paths_are_found_by_patterns_in_bounded_time(engine: Engine) {
    let scene = Scene::set(engine).await;
    symlink(scene.outside(""), scene.root.join("away")).unwrap();
    symlink("..", scene.root.join("src/loop")).unwrap();
    fs::write(scene.root.join(".hidden"), "").unwrap();
    let glob = async |query: String| scene.server.get(&format!("/glob?{query}")).await;
    let found =
        async |pattern: &str| glob(format!("pattern={}", encoded(pattern))).await.with_status(200)["matches"].clone();
    assert_eq!(found("**/*.{rs,ts}").await, json!(["src/deep/main.rs"]));
    assert_eq!(found("src/*").await, json!(["src/deep", "src/loop", "src/text"]));
    assert_eq!(found("[.s]*").await, json!([".hidden", "src"]));
    assert_eq!(found("**/secret").await, json!([]));
    let below = glob("pattern=**/*.rs&cwd=src".into()).await.with_status(200);
    assert_eq!((&below["matches"], &below["cwd"]), (&json!(["src/deep/main.rs"]), &json!("src")));
    assert_eq!((&below["kind"], &below["count"], &below["truncated"]), (&json!("glob"), &json!(1), &json!(false)));
    let one = glob("pattern=**&maxResults=1".into()).await.with_status(200);
    assert_eq!((&one["count"], &one["truncated"]), (&json!(1), &json!(true)));
    for pattern in ["../*", "/etc/*", "src/../../*", "{..,src}/*"] {
        refused(&glob(format!("pattern={}", encoded(pattern))).await, "path_outside_workspace", 400);
    }
    refused(&glob("pattern=*&cwd=..".into()).await, "path_outside_workspace", 400);
    refused(&glob("pattern=*&cwd=away".into()).await, "symlink_escape", 400);
    for query in ["", "pattern=", "pattern=[a", "pattern=*&maxResults=0", "pattern=*&maxResults=50001"] {
        refused(&glob(query.into()).await, "parse_error", 400);
    }
    for n in 0..2_000 {
        fs::write(scene.root.join(format!("src/deep/{}{n}", "a".repeat(100))), "").unwrap();
    }
    // A pattern that took exponential time would not be answered within the client's patience.
    for hostile in ["*a".repeat(120), "**/*a*".repeat(60), "{a*,*a}".repeat(40), "?*".repeat(60), "[a-z]*".repeat(60)] {
        glob(format!("pattern={}", encoded(&format!("src/deep/{hostile}b")))).await.with_status(200);
    }
    for hostile in ["*a".repeat(400), "{".repeat(500), "{a,".repeat(20), "?".repeat(1_000)] {
        refused(&glob(format!("pattern={}", encoded(&hostile))).await, "parse_error", 400);
    }
}

#[one_engine]
async fn no_path_leads_out_of_the_workspace(engine: Engine) {
    let scene = Scene::set(engine).await;
    symlink(scene.outside("secret"), scene.root.join("leak")).unwrap();
    symlink("../outside", scene.root.join("away")).unwrap();
    let secret = scene.outside("secret");
    for path in ["../outside/secret", "src/../../outside/secret", secret.to_str().unwrap(), "/etc/passwd", "/", ".."] {
        for route in ["file", "file/bytes", "stat", "list"] {
            refused(&scene.get(route, path).await, "path_outside_workspace", 400);
        }
        refused(&scene.create(path, "x").await, "path_outside_workspace", 400);
        refused(&scene.edit(path, "s", &content_hash(b"secret")).await, "path_outside_workspace", 400);
    }
    for path in ["leak", "away/secret"] {
        for route in ["file", "file/bytes", "stat"] {
            refused(&scene.get(route, path).await, "symlink_escape", 400);
        }
        refused(&scene.create(path, "x").await, "symlink_escape", 400);
        refused(&scene.replace(path, "x", &content_hash(b"secret")).await, "symlink_escape", 400);
        refused(&scene.edit(path, "s", &content_hash(b"secret")).await, "symlink_escape", 400);
    }
    refused(&scene.get("list", "away").await, "symlink_escape", 400);
    refused(&scene.create("away/new", "x").await, "symlink_escape", 400);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_dir(scene.outside("")).unwrap().count(), 1);
}

#[one_engine]
async fn pipes_and_devices_do_not_make_a_request_hang(engine: Engine) {
    let scene = Scene::set(engine).await;
    let made = std::process::Command::new("mkfifo").arg(scene.root.join("pipe")).status().unwrap();
    assert!(made.success());
    symlink("/dev/zero", scene.root.join("zero")).unwrap();
    for route in ["file", "file/bytes"] {
        refused(&scene.get(route, "pipe").await, "parse_error", 400);
        refused(&scene.get(route, "zero").await, "symlink_escape", 400);
        refused(&scene.get(route, "src").await, "parse_error", 400);
    }
    refused(&scene.create("pipe", "x").await, "parse_error", 400);
    refused(&scene.create("src", "x").await, "parse_error", 400);
    refused(&scene.edit("pipe", "x", &content_hash(b"")).await, "parse_error", 400);
    assert_eq!(scene.get("stat", "pipe").await.with_status(200)["type"], "other");
}

#[one_engine]
async fn files_that_are_too_large_or_not_text_are_refused(engine: Engine) {
    let scene = Scene::set(engine).await;
    fs::write(scene.root.join("fits"), "x".repeat(FILE_READ_BYTES_MAX)).unwrap();
    fs::write(scene.root.join("large"), "x".repeat(FILE_READ_BYTES_MAX + 1)).unwrap();
    assert_eq!(scene.read("fits").await["returnedBytes"], FILE_READ_BYTES_MAX);
    refused(&scene.get("file", "large").await, "file_too_large", 413);
    for (name, bytes) in [("zero", b"a\0b" as &[u8]), ("latin", b"caf\xe9"), ("wide", b"\xff\xfea\0")] {
        fs::write(scene.root.join(name), bytes).unwrap();
        refused(&scene.get("file", name).await, "binary_file", 422);
        refused(&scene.edit(name, "a", &content_hash(bytes)).await, "binary_file", 422);
    }
    scene.create("written", &"x".repeat(FILE_WRITE_BYTES_MAX)).await.with_status(201);
    refused(&scene.create("over", &"x".repeat(FILE_WRITE_BYTES_MAX + 1)).await, "file_too_large", 413);
    refused(&scene.create("over", &"x".repeat(11 * 1024 * 1024)).await, "file_too_large", 413);
    assert!(!scene.root.join("over").exists());
}

#[one_engine]
async fn a_file_is_created_once_and_replaced_by_its_hash(engine: Engine) {
    let scene = Scene::set(engine).await;
    let answer = scene.create("src/new", "a\nb\n").await;
    assert_eq!(answer.headers["cache-control"], "no-store");
    let hash = content_hash(b"a\nb\n");
    let created = json!({"kind": "file_write", "path": "src/new", "mode": "create", "created": true, "sizeBytes": 4,
        "hash": hash, "encoding": "utf-8", "bom": false, "lineEnding": "lf", "matchedIgnore": null});
    assert_eq!(answer.with_status(201), created);
    refused(&scene.create("src/new", "x").await, "file_already_exists", 409);
    refused(&scene.replace("src/new", "x", &content_hash(b"x")).await, "hash_mismatch", 409);
    refused(&scene.replace("src/none", "x", &hash).await, "path_not_found", 404);
    refused(&scene.create("none/new", "x").await, "path_not_found", 404);
    assert_eq!(scene.stored("src/new"), "a\nb\n");
    let replaced = scene.replace("src/new", "c\n", &hash).await.with_status(200);
    assert_eq!((&replaced["created"], &replaced["hash"]), (&json!(false), &json!(content_hash(b"c\n"))));
    assert_eq!(scene.read("src/new").await["hash"], replaced["hash"]);
    let names: Vec<_> = fs::read_dir(scene.root.join("src")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "no temporary file is left: {names:?}");
}

#[one_engine]
async fn a_written_file_has_the_requested_encoding(engine: Engine) {
    let scene = Scene::set(engine).await;
    let write = async |fields: Value| {
        let mut body = json!({"path": "a", "content": "x\ny\n", "mode": "create"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        scene.server.post("/file/write", &body).await
    };
    let made = write(json!({"bom": true, "lineEnding": "crlf", "encoding": "UTF-8"})).await.with_status(201);
    assert_eq!((&made["bom"], &made["lineEnding"]), (&json!(true), &json!("crlf")));
    assert_eq!(scene.stored("a"), "\u{feff}x\r\ny\r\n");
    let read = scene.read("a").await;
    assert_eq!((&read["content"], &read["bom"], &read["sizeBytes"]), (&json!("x\r\ny\r\n"), &json!(true), &json!(9)));
    let kept = scene.replace("a", "z\n", &id(&made, "hash")).await.with_status(200);
    assert_eq!(scene.stored("a"), "\u{feff}z\r\n");
    let plain = json!({"mode": "replace", "expectedHash": kept["hash"], "bom": false, "lineEnding": "lf"});
    write(plain).await.with_status(200);
    assert_eq!(scene.stored("a"), "x\ny\n");
    for fields in [
        json!({"encoding": "latin1"}),
        json!({"lineEnding": "cr"}),
        json!({"mode": "append"}),
        json!({"mode": "replace"}),
        json!({"expectedHash": "sha256:0"}),
        json!({"content": 7}),
        json!({"path": ""}),
        json!({"unknown": true}),
    ] {
        refused(&write(fields).await, "parse_error", 400);
    }
    assert_eq!(scene.stored("a"), "x\ny\n");
}

#[one_engine]
async fn an_edit_replaces_a_text_that_occurs_once(engine: Engine) {
    let scene = Scene::set(engine).await;
    let hash = content_hash(TEXT.as_bytes());
    refused(&scene.edit("src/text", "four", &hash).await, "text_not_found", 422);
    refused(&scene.edit("src/text", "o", &hash).await, "ambiguous_text_match", 422);
    refused(&scene.edit("src/text", "", &hash).await, "parse_error", 400);
    refused(&scene.edit("src/text", "two", &content_hash(b"")).await, "hash_mismatch", 409);
    refused(&scene.edit("src/none", "two", &hash).await, "path_not_found", 404);
    let missing = json!({"path": "src/text", "oldText": "two", "newText": "new"});
    refused(&scene.server.post("/file/edit", &missing).await, "parse_error", 400);
    assert_eq!(scene.stored("src/text"), TEXT);
    let edited = scene.edit("src/text", "two", &hash).await.with_status(200);
    let expected = content_hash(b"one\nnew\nthree\n");
    assert_eq!(
        (&edited["kind"], &edited["replacements"], &edited["hash"]),
        (&json!("file_edit"), &json!(1), &json!(expected))
    );
    assert_eq!(scene.stored("src/text"), "one\nnew\nthree\n");
    refused(&scene.edit("src/text", "new", &hash).await, "hash_mismatch", 409);
}

#[one_engine]
async fn a_write_does_not_reach_other_names_of_the_file(engine: Engine) {
    let scene = Scene::set(engine).await;
    fs::hard_link(scene.outside("secret"), scene.root.join("shared")).unwrap();
    let hash = id(&scene.read("shared").await, "hash");
    scene.replace("shared", "changed", &hash).await.with_status(200);
    assert_eq!(fs::read_to_string(scene.outside("secret")).unwrap(), "secret");
    assert_eq!(scene.stored("shared"), "changed");
}

#[one_engine]
async fn the_servers_secrets_are_not_read_under_another_name(engine: Engine) {
    let scene = Scene::set(engine).await;
    let token = scene.server.config.server.data_dir.as_ref().unwrap().join("token");
    fs::hard_link(&token, scene.root.join("src/shared")).unwrap();
    for route in ["file", "file/bytes"] {
        refused(&scene.get(route, "src/shared").await, "permission_denied", 403);
    }
    refused(&scene.replace("src/shared", "x", &content_hash(b"x")).await, "permission_denied", 403);
}

#[one_engine]
async fn configuration_is_written_only_by_callers_that_may_change_settings(engine: Engine) {
    let scene = Scene::with(engine, |setup| setup.token("ours", "client", &["local"])).await;
    fs::create_dir(scene.root.join(".ostler")).unwrap();
    symlink(".ostler", scene.root.join("alias")).unwrap();
    let ours = scene.server.caller("ours");
    for path in
        [".ostler/settings.json", "./src/../.OSTLER/settings.json", "alias/settings.json", ".qwen/settings.json"]
    {
        let write = json!({"path": path, "content": "{}", "mode": "create"});
        refused(&ours.post("/file/write", &write).await, "permission_denied", 403);
        let edit = json!({"path": path, "oldText": "a", "newText": "b", "expectedHash": content_hash(b"")});
        refused(&ours.post("/file/edit", &edit).await, "permission_denied", 403);
    }
    scene.create("alias/settings.json", "{}").await.with_status(201);
    assert_eq!(scene.stored(".ostler/settings.json"), "{}");
}

#[one_engine]
async fn of_two_writers_one_wins(engine: Engine) {
    let scene = Scene::set(engine).await;
    let mut hash = content_hash(TEXT.as_bytes());
    for round in 0..10 {
        let contents = [format!("{round} a"), format!("{round} b")];
        let (first, second) = tokio::join!(
            scene.replace("src/text", &contents[0], &hash),
            scene.replace("src/text", &contents[1], &hash)
        );
        let (won, lost, content) = match first.status {
            200 => (first, second, &contents[0]),
            _ => (second, first, &contents[1]),
        };
        refused(&lost, "hash_mismatch", 409);
        hash = id(&won.with_status(200), "hash");
        assert_eq!(&scene.stored("src/text"), content);
    }
    let (first, second) = tokio::join!(scene.create("made", "a"), scene.create("made", "b"));
    let mut statuses = [first.status, second.status];
    statuses.sort();
    assert_eq!(statuses, [201, 409]);
}

#[one_engine]
async fn only_callers_of_the_tenant_use_the_files(engine: Engine) {
    let choose = |setup: &mut Setup| {
        setup.token("ours", "client", &["local"]);
        setup.token("theirs", "client", &["elsewhere"]);
        setup.token("runner", "runner", &["local"]);
    };
    let scene = Scene::with(engine, choose).await;
    let write = json!({"path": "new", "content": "x", "mode": "create"});
    let edit =
        json!({"path": "src/text", "oldText": "two", "newText": "x", "expectedHash": content_hash(TEXT.as_bytes())});
    let strangers = [
        (scene.server.with_token(None), 401),
        (scene.server.with_token(Some("ost_svc_0123456789abcdef0123456789abcdef")), 401),
        (scene.server.caller("theirs").clone(), 403),
        (scene.server.caller("runner").clone(), 403),
    ];
    for (stranger, status) in &strangers {
        for route in ["file", "file/bytes", "stat", "list", "glob"] {
            let query = if route == "glob" { "pattern=*" } else { "path=src/text" };
            let answer = stranger.get(&format!("/{route}?{query}")).await;
            assert_eq!(answer.status, *status, "{route}: {}", answer.text);
            assert!(!answer.text.contains("two"), "{}", answer.text);
        }
        assert_eq!(stranger.post("/file/write", &write).await.status, *status);
        assert_eq!(stranger.post("/file/edit", &edit).await.status, *status);
    }
    assert!(!scene.root.join("new").exists());
    let ours = scene.server.caller("ours");
    assert_eq!(get(ours, "file", "src/text").await.with_status(200)["content"], TEXT);
    ours.post("/file/write", &write).await.with_status(201);
    let unknown = ours.request("POST", "/file/edit").header("x-qwen-client-id", "client_unknown");
    let answer = ours.send(unknown.header("content-type", "application/json").body(edit.to_string())).await;
    assert_eq!((answer.status, &answer.body["code"]), (400, &json!("invalid_client_id")), "{}", answer.text);
    assert_eq!(scene.stored("src/text"), TEXT);
}

#[one_engine]
async fn a_caller_without_a_token_may_read_and_not_write(engine: Engine) {
    let scene = Scene::with(engine, |setup| setup.config.server.open_loopback = true).await;
    let nobody = scene.server.with_token(None);
    assert_eq!(get(&nobody, "file", "src/text").await.with_status(200)["content"], TEXT);
    let write = json!({"path": "new", "content": "x", "mode": "create"});
    let edit =
        json!({"path": "src/text", "oldText": "two", "newText": "x", "expectedHash": content_hash(TEXT.as_bytes())});
    for (path, body) in [("/file/write", &write), ("/file/edit", &edit)] {
        let answer = nobody.post(path, body).await;
        assert_eq!((answer.status, &answer.body["code"]), (401, &json!("token_required")), "{}", answer.text);
    }
    assert!(!scene.root.join("new").exists());
    scene.server.post("/file/write", &write).await.with_status(201);
}

#[one_engine]
async fn a_server_without_a_workspace_has_no_files(engine: Engine) {
    let server = TestServer::start(engine).await;
    for path in ["/file?path=a", "/file/bytes?path=a", "/stat?path=.", "/list?path=.", "/glob?pattern=*"] {
        let answer = server.get(path).await;
        refused(&answer, "no_workspace", 409);
    }
    let write = server.post("/file/write", &json!({"path": "a", "content": "", "mode": "create"})).await;
    refused(&write, "no_workspace", 409);
}
