//! Pictures in a bucket instead of a directory: put, shown and erased there, and refused as a whole when the bucket is gone.

use ostler_stand_ins::Bucket;

use crate::{
    home::{Engine, Home},
    http::Http,
};

const THREAD: &str = "550e8400-e29b-41d4-a716-446655440000";
const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const PICTURE: &str = "GIF89a a picture in plain letters";

pub fn upload(http: &mut Http) -> crate::http::Answer {
    let field =
        |name: &str, text: &str| format!("--form\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n");
    let file = "--form\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.gif\"\r\n\r\n";
    let form = field("threadId", THREAD) + &field("runId", "run-1") + file + PICTURE + "\r\n--form--\r\n";
    http.send("POST", "/api/v1/agent/attachments", &["content-type: multipart/form-data; boundary=form"], &form)
        .unwrap()
}

#[test]
fn pictures_lie_in_a_bucket_and_leave_it_with_their_thread() {
    let bucket = Bucket::open(ACCESS_KEY);
    let mut home = Home::new(Engine::Sqlite);
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "eu-central-1"),
        ("OSTLER_ATTACHMENTS__S3_BUCKET", "pictures"),
        ("OSTLER_ATTACHMENTS__S3_ENDPOINT", &bucket.url()),
    ] {
        home.set(name, value);
    }
    let server = home.serve();
    let mut http = Http::new(&server);
    let made = upload(&mut http).good();
    assert_eq!((&made["bucket"], &made["mime_type"]), (&"pictures".into(), &"image/gif".into()));
    let at = format!("/pictures/{}", made["path"].as_str().unwrap());
    assert_eq!(bucket.objects().get(&at).map(|bytes| &bytes[..]), Some(PICTURE.as_bytes()));
    let url = made["url"].as_str().unwrap();
    let shown = Http::with_token(&server.address, None).get(&url[url.find("/api/").unwrap()..]);
    assert_eq!((shown.status, shown.body.as_str()), (200, PICTURE));
    let erased = http.send("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"), &[], "").unwrap();
    assert!((200..300).contains(&erased.status), "{erased:?}");
    assert!(bucket.objects().is_empty(), "{:?}", bucket.objects().keys());
    drop(bucket);
    let refused = upload(&mut http);
    assert!(refused.status >= 500, "{refused:?}");
    server.stop();
    assert!(!home.log().contains(SECRET) && !home.everything_stored().contains(SECRET));
}
