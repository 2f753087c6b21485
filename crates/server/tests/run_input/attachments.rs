//! Attachments: pictures are accepted by their bytes, served to every client with a valid URL, used by their owners in
//! their own threads, and deleted when no message uses them.

use ostler_protocol::{FailureKind::*, run_input::attachments::ATTACHMENT_BYTES_MAX};
use ostler_run_input::config::attachments::AttachmentsSection;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    harness::{Caller, Engine, PNG, TestServer, both_engines, eventually, id},
    run_input::runs::{THREAD, user},
};

const UPLOADS: &str = "/api/v1/agent/attachments";
const OTHER_THREAD: &str = "650e8400-e29b-41d4-a716-446655440000";

fn place(url: &str) -> String {
    url[url.find("/api/").unwrap()..].to_owned()
}

pub(crate) fn with_picture(run_id: &str, url: &str) -> Value {
    let parts =
        json!([{"type": "text", "text": "what is this?"}, {"type": "binary", "mimeType": "image/jpeg", "url": url}]);
    json!({"threadId": THREAD, "runId": run_id, "messages": [{"id": format!("m-{run_id}"), "role": "user", "content": parts}],
        "forwardedProps": {"runtime_mode": "chat"}})
}

async fn post(caller: &Caller, body: &Value) -> crate::harness::Answer {
    caller.post("/api/v1/agent/runs", body).await
}

/// The files in the directory of attachments.
pub(crate) fn files(server: &TestServer) -> usize {
    let (mut files, mut left) = (0, vec![server.config.server.data_dir.clone().unwrap().join("attachments")]);
    while let Some(path) = left.pop() {
        match std::fs::read_dir(&path) {
            Ok(entries) => left.extend(entries.flatten().map(|entry| entry.path())),
            // A file that was deleted in the meantime is left out.
            Err(_) => files += usize::from(path.is_file()),
        }
    }
    files
}

#[both_engines]
async fn a_picture_is_uploaded_shown_and_signed_afresh(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let made = server.upload(THREAD, PNG).await.with_status(201);
    assert_eq!((&made["bucket"], &made["mime_type"]), (&json!("local"), &json!("image/png")));
    let path = id(&made, "path");
    assert!(path.starts_with(&format!("agent-inputs/local/{THREAD}/run-1/")) && path.ends_with(".png"), "{path}");
    let shown = server.with_token(None).get(&place(&id(&made, "url"))).await;
    assert_eq!((shown.status, shown.text.as_bytes()), (200, String::from_utf8_lossy(PNG).as_bytes()));
    assert_eq!(shown.headers["content-type"], "image/png");
    assert_eq!(shown.headers["x-content-type-options"], "nosniff");
    assert_eq!(shown.headers["cache-control"], "private, max-age=3600, immutable");
    assert!(shown.headers["content-disposition"].to_str().unwrap().starts_with("inline; filename="));
    assert!(shown.headers["content-security-policy"].to_str().unwrap().contains("sandbox"));
    server.clock.advance_ms(60_000);
    let signing = format!("{UPLOADS}/signed-url?bucket=local&path={path}");
    let signed = server.get(&signing).await.with_status(200);
    assert_eq!((&signed["path"], &signed["bucket"]), (&made["path"], &made["bucket"]));
    assert_ne!(signed["url"], made["url"]);
    // A URL outlives its server.
    server.restart().await;
    server.with_token(None).get(&place(&id(&signed, "url"))).await.with_status(200);
    let nowhere = server.get(&signing.replace(".png", ".gif")).await;
    nowhere.refused_as(NotFound, "AGENT_SESSION_NOT_FOUND");
    server.get(&signing.replace("bucket=local", "bucket=other")).await.refused(NotFound);
    server.get(&format!("{UPLOADS}/signed-url?bucket=local&path=../../token")).await.refused(NotFound);
}

#[both_engines]
async fn what_is_no_picture_or_no_form_is_refused(engine: Engine) {
    let server = TestServer::start(engine).await;
    let svg: &[u8] = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>";
    for bytes in [svg, b"<!doctype html><script>alert(1)</script>", b"", b"GIF8", b"%PDF-1.7"] {
        server.upload(THREAD, bytes).await.refused_by(UnsupportedMediaType, "attachment-type");
    }
    let good: [(&str, &[u8]); 3] = [("threadId", THREAD.as_bytes()), ("runId", b"r"), ("file", PNG)];
    for (fields, code) in [
        (vec![good[0], good[1]], "AGENT_PAYLOAD_INVALID"),
        (vec![good[1], good[2]], "AGENT_SESSION_ID_INVALID"),
        (vec![("threadId", b"../x" as &[u8]), good[1], good[2]], "AGENT_SESSION_ID_INVALID"),
        (vec![good[0], ("runId", b""), good[2]], "AGENT_INVALID_RUN_ID"),
        (vec![good[0], good[1], good[2], good[2]], "AGENT_PAYLOAD_INVALID"),
        (vec![good[0], good[1], good[2], ("owner", b"somebody else")], "AGENT_PAYLOAD_INVALID"),
    ] {
        let answer = server.send_form(UPLOADS, &fields).await;
        answer.refused_as(RunInputInvalid, code);
    }
    server.post(UPLOADS, &json!({"file": "x"})).await.refused_by(UnsupportedMediaType, "content-type");
    let cut = server.request("POST", UPLOADS).header("content-type", "multipart/form-data; boundary=form");
    server
        .send(cut.body("--form\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\u{89}PN"))
        .await
        .refused(RunInputInvalid);
    assert_eq!(files(&server), 0);
    assert_eq!(server.store("SELECT path FROM attachments").await, Vec::<String>::new());
    // A run id that is no plain name still has its place, and no way out of it.
    let fields = [good[0], ("runId", b"../../../etc" as &[u8]), good[2]];
    let made = server.send_form(UPLOADS, &fields).await.with_status(201);
    assert_eq!(id(&made, "path").split('/').count(), 5);
    server.with_token(None).get(&place(&id(&made, "url"))).await.with_status(200);
}

#[both_engines]
async fn a_picture_may_be_as_large_as_declared_and_no_larger(engine: Engine) {
    let server = TestServer::start(engine).await;
    let sized = |bytes: usize| [PNG, &vec![7; bytes - PNG.len()]].concat();
    let made = server.upload(THREAD, &sized(ATTACHMENT_BYTES_MAX)).await.with_status(201);
    server.with_token(None).get(&place(&id(&made, "url"))).await.with_status(200);
    let over = server.upload(THREAD, &sized(ATTACHMENT_BYTES_MAX + 1)).await;
    over.refused_by(PayloadTooLarge, "attachment-size");
}

#[both_engines]
async fn a_url_ends_and_leads_nowhere_else(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (nobody, made) = (server.with_token(None), server.upload(THREAD, PNG).await.with_status(201));
    let url = place(&id(&made, "url"));
    std::fs::write(server.config.server.data_dir.as_ref().unwrap().join("attachments/secret.png"), "secret").unwrap();
    for altered in [
        url.replace("/local/agent-inputs/local/", "/local/agent-inputs/usr_2/"),
        url.replace(THREAD, OTHER_THREAD),
        url.replace("/object/local/", "/object/other/"),
        url.replace("expires=1767229200", "expires=1767229201"),
        url.replace("signature=", "signature=00"),
        url.replace("/run-1/", "/%2e%2e/"),
        url.replace("/run-1/", "/..%2f..%2frun-1%2f"),
        url.replace(".png?", ".gif?"),
    ] {
        assert_ne!(altered, url);
        let answer = nobody.get(&altered).await;
        // Some lead to no path at all, and none of them is accepted without a token.
        assert!([401, 403, 404].contains(&answer.status), "{altered}: {}", answer.text);
        assert!(!answer.text.contains("secret") && !answer.text.contains("PNG"), "{altered}");
    }
    nobody.get(url.split('?').next().unwrap()).await.refused(RunInputInvalid);
    server.clock.advance_ms(3_599_000);
    nobody.get(&url).await.with_status(200);
    server.clock.advance_ms(1_000);
    nobody.get(&url).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    // Ended, it is no good in a message either.
    post(&server, &with_picture("run-1", &id(&made, "url")))
        .await
        .refused_as(RunInputInvalid, "AGENT_ATTACHMENT_INVALID");
}

#[both_engines]
async fn a_page_from_anywhere_may_show_a_picture(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.server.require_auth = true).await;
    let url = place(&id(&server.upload(THREAD, PNG).await.with_status(201), "url"));
    let nobody = server.with_token(None);
    let from_a_page =
        nobody.request("GET", &url).header("sec-fetch-site", "cross-site").header("sec-fetch-dest", "image");
    nobody.send(from_a_page).await.with_status(200);
    // A page that goes by another name for this machine may not.
    nobody.send(nobody.request("GET", &url).header("host", "evil.test")).await.refused(OriginDenied);
}

#[both_engines]
async fn a_message_carries_pictures_of_its_own_thread_only(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, eve) = (user(&server, "ada", &["local"]).await, user(&server, "eve", &["local"]).await);
    let own = id(&ada.upload(THREAD, PNG).await.with_status(201), "url");
    post(&eve, &with_picture("run-1", &own)).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    let elsewhere = id(&ada.upload(OTHER_THREAD, PNG).await.with_status(201), "url");
    post(&ada, &with_picture("run-1", &elsewhere)).await.refused_as(RunInputInvalid, "AGENT_ATTACHMENT_INVALID");
    for bad in
        ["https://storage.example.com/x.png", "data:image/png;base64,AAAA", "x", &own.replace("local/", "other/")]
    {
        post(&ada, &with_picture("run-1", bad)).await.refused_as(RunInputInvalid, "AGENT_ATTACHMENT_INVALID");
    }
    assert_eq!(server.get("/api/v1/sessions?state=all").await.ok()["sessions"], json!([]), "nothing was begun");
    post(&ada, &with_picture("run-1", &own)).await.with_status(202);
    // The stored part has its path, not its URL, and is a PNG whatever the message declared.
    let kept = server.store("SELECT payload FROM events WHERE type = 'user_message'").await;
    assert!(kept[0].contains(r#""mimeType":"image/png""#) && kept[0].contains(r#""bucket":"local""#), "{kept:?}");
    assert!(!kept[0].contains("signature"), "{kept:?}");
    // The runner of the turn gets the picture.
    let run = server.run_of_thread().await;
    let task = server.store("SELECT command_id FROM commands").await.remove(0);
    let told = server.get(&format!("/api/v1/runs/{run}/commands/{task}/conversation")).await.with_status(200);
    assert_eq!(told["images"][0]["mimeType"], "image/png");
    server.with_token(None).get(&place(&id(&told["images"][0], "url"))).await.with_status(200);
    // … and no caller can read it by naming it in a command of their own.
    let path = &own[own.find("agent-inputs").unwrap()..own.find('?').unwrap()];
    let stolen = json!([{"type": "image", "mimeType": "image/png", "bucket": "local", "path": path}]);
    let other = server.create_run().await;
    let turn = json!({"type": "turn", "payload": {"prompt": "mine", "content": stolen}});
    let thief = id(&server.submit(&other, &turn).await.with_status(201), "commandId");
    let told = server.get(&format!("/api/v1/runs/{other}/commands/{thief}/conversation")).await.with_status(200);
    assert_eq!(told["images"], Value::Null);
    server.clock.advance_ms(7_200_000);
    let history = ada.get(&format!("/api/v1/agent/history?threadId={THREAD}")).await.with_status(200);
    let attachment = &history["messages"][0]["attachments"][0];
    assert_eq!(
        (&attachment["mimeType"], &history["messages"][0]["content"]),
        (&json!("image/png"), &json!("what is this?"))
    );
    assert_ne!(attachment["url"], json!(own), "signed afresh");
    server.with_token(None).get(&place(&id(attachment, "url"))).await.with_status(200);
    // Another user's thread has no room, and another user's picture is not signed.
    eve.upload(THREAD, PNG).await.refused_as(Forbidden, "AGENT_FORBIDDEN");
    let path = &own[own.find("agent-inputs").unwrap()..own.find('?').unwrap()];
    eve.get(&format!("{UPLOADS}/signed-url?bucket=local&path={path}")).await.refused(Forbidden);
}

#[both_engines]
async fn a_message_may_be_a_picture_and_nothing_else(engine: Engine) {
    let server = TestServer::start(engine).await;
    let url = id(&server.upload(THREAD, PNG).await.with_status(201), "url");
    let mut message = with_picture("run-1", &url);
    message["messages"][0]["content"].as_array_mut().unwrap().remove(0);
    post(&server, &message).await.with_status(202);
    let history = server.get("/api/v1/agent/history").await.with_status(200);
    assert_eq!(history["messages"][0]["content"], "");
    assert_eq!(history["messages"][0]["attachments"].as_array().unwrap().len(), 1);
}

#[both_engines]
async fn only_trusted_hosts_may_be_named_as_they_are(engine: Engine) {
    let trusted = vec!["storage.example.com".to_owned()];
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|attachments: &mut AttachmentsSection| attachments.trusted_hosts = trusted)
    })
    .await;
    let url = "https://storage.example.com/agent-inputs/user-123/image.png?signature=xxx";
    post(&server, &with_picture("run-1", "https://storage.example.org/x.png")).await.refused(RunInputInvalid);
    post(&server, &with_picture("run-1", url)).await.with_status(202);
    let history = server.get("/api/v1/agent/history").await.with_status(200);
    assert_eq!(history["messages"][0]["attachments"], json!([{"mimeType": "image/jpeg", "url": url}]));
    // It is kept as it is: no credential, nothing endless, and no other kind.
    let secret = format!("https://storage.example.com/x.png?token={}", "ghp_".to_owned() + &"a1".repeat(18));
    let long = format!("https://storage.example.com/{}", "x".repeat(2_048));
    let strange = with_picture("run-2", url).to_string().replace("image/jpeg", "image/svg+xml");
    for bad in [with_picture("run-2", &secret), with_picture("run-2", &long), strange.parse().unwrap()] {
        post(&server, &bad).await.refused_as(RunInputInvalid, "AGENT_ATTACHMENT_INVALID");
    }
}

#[both_engines]
async fn a_user_has_so_much_and_no_more(engine: Engine) {
    let bytes = 3 * PNG.len() as i64;
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|attachments: &mut AttachmentsSection| attachments.quota_bytes = bytes)
    })
    .await;
    let (ada, eve) = (user(&server, "ada", &["local"]).await, user(&server, "eve", &["local"]).await);
    for _ in 0..3 {
        ada.upload(THREAD, PNG).await.with_status(201);
    }
    ada.upload(THREAD, PNG).await.refused_by(RateLimited, "attachment-quota");
    eve.upload(OTHER_THREAD, PNG).await.with_status(201);
    // Erasing a thread frees room.
    ada.send(ada.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"))).await.with_status(204);
    ada.upload(THREAD, PNG).await.with_status(201);
    assert_eq!(files(&server), 2);
}

#[both_engines]
async fn what_no_message_uses_is_let_go_of(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    let used = id(&server.upload(THREAD, PNG).await.with_status(201), "url");
    let unused = id(&server.upload(THREAD, PNG).await.with_status(201), "path");
    post(&server, &with_picture("run-1", &used)).await.with_status(202);
    server.clock.advance_ms(86_400_001);
    let late = id(&server.upload(THREAD, PNG).await.with_status(201), "path");
    eventually("what is unused goes", async || (files(&server) == 2).then_some(())).await;
    let signing = |path: &str| format!("{UPLOADS}/signed-url?bucket=local&path={path}");
    server.get(&signing(&unused)).await.refused(NotFound);
    server.get(&signing(&late)).await.with_status(200);
    let path = &used[used.find("agent-inputs").unwrap()..used.find('?').unwrap()];
    server.get(&signing(path)).await.with_status(200);
}

#[both_engines]
async fn a_picture_of_a_message_that_was_refused_is_not_used(engine: Engine) {
    let sweeping = |setup: &mut crate::harness::Setup| setup.config.sessions.gc_interval_ms = 20;
    let server = TestServer::with(engine, sweeping).await;
    post(&server, &with_picture("run-0", &id(&server.upload(THREAD, PNG).await.with_status(201), "url")))
        .await
        .with_status(202);
    let refused = id(&server.upload(THREAD, PNG).await.with_status(201), "url");
    // Its name was used before, for something else.
    post(&server, &with_picture("run-0", &refused)).await.refused(IdempotencyConflict);
    server.clock.advance_ms(86_400_001);
    eventually("nothing but the message's picture is left", async || (files(&server) == 1).then_some(())).await;
    eventually("and that one is known to be used", async || {
        (server.store("SELECT path FROM attachments WHERE used_at IS NOT NULL").await.len() == 1).then_some(())
    })
    .await;
    let rows = async || server.store("SELECT path FROM attachments").await.len();
    eventually("the other's row goes too", async || (rows().await == 1).then_some(())).await;
}

#[both_engines]
async fn a_file_that_cannot_be_removed_holds_nothing_up_and_is_not_lost(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.sessions.gc_interval_ms = 20).await;
    let directory = server.config.server.data_dir.clone().unwrap().join("attachments");
    let stuck = directory.join(id(&server.upload(THREAD, PNG).await.with_status(201), "path"));
    server.clock.advance_ms(1);
    server.upload(THREAD, PNG).await.with_status(201);
    std::fs::remove_file(&stuck).unwrap();
    std::fs::create_dir(&stuck).unwrap();
    server.clock.advance_ms(86_400_001);
    eventually("the other one goes", async || (files(&server) == 0).then_some(())).await;
    let rows = async || server.store("SELECT path FROM attachments").await.len();
    eventually("with its row", async || (rows().await == 1).then_some(())).await;
    std::fs::remove_dir(&stuck).unwrap();
    eventually("what was stuck goes when it can", async || (rows().await == 0).then_some(())).await;
}

#[both_engines]
async fn an_upload_whose_thread_is_erased_concurrently_leaves_no_file(engine: Engine) {
    let server = TestServer::start(engine).await;
    // As if the thread was erased between the row and the file.
    let erasing: &[&str] = match engine {
        Engine::Sqlite => &["CREATE TRIGGER erasing AFTER INSERT ON attachments
            BEGIN DELETE FROM attachments WHERE path = NEW.path; END"],
        Engine::Postgres => &[
            "CREATE FUNCTION erasing() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN DELETE FROM attachments WHERE path = NEW.path; RETURN NULL; END $$",
            "CREATE TRIGGER erasing AFTER INSERT ON attachments FOR EACH ROW EXECUTE FUNCTION erasing()",
        ],
    };
    for sql in erasing {
        server.store(sql).await;
    }
    server.upload(THREAD, PNG).await.refused(NotFound);
    assert_eq!(files(&server), 0);
}

#[both_engines]
async fn one_user_cannot_take_every_place_for_uploads(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (ada, eve) = (user(&server, "ada", &["local"]).await, user(&server, "eve", &["local"]).await);
    // Forms that begin and do not go on.
    let authorization = ada.request("POST", UPLOADS).build().unwrap().headers()["authorization"].clone();
    let head = format!(
        "POST {UPLOADS} HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\ncontent-type: multipart/form-data; boundary=form\r\n\
         transfer-encoding: chunked\r\n\r\n8\r\n--form\r\n\r\n",
        server.address(),
        authorization.to_str().unwrap(),
    );
    let mut begun = vec![];
    for _ in 0..5 {
        let mut socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        begun.push(socket);
    }
    let refused = eventually("one of five is one too many", async || {
        let mut answer = [0; 12];
        begun.iter().find_map(|socket| socket.try_read(&mut answer).ok().map(|_| answer))
    });
    assert_eq!(&refused.await, b"HTTP/1.1 429");
    ada.upload(THREAD, PNG).await.refused_by(RateLimited, "uploads-per-caller");
    eve.upload(OTHER_THREAD, PNG).await.with_status(201);
    // A place is given back with the file's end, however it ends.
    drop(begun);
    eventually("there is room again", async || (ada.upload(THREAD, PNG).await.status == 201).then_some(())).await;
}
