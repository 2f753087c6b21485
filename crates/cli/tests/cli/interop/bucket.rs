//! Attachments in a bucket instead of a directory: stored, served and erased there, and rejected when the bucket is gone.

use ostler_stand_ins::Bucket;

use crate::fixtures::{
    attachments::{PICTURE, THREAD, upload},
    http::Http,
    test_home::{Engine, TestHome},
};

const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

#[test]
fn attachments_are_stored_in_a_bucket_and_erased_with_their_thread() {
    let bucket = Bucket::open(ACCESS_KEY);
    let mut home = TestHome::new(Engine::Sqlite);
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
