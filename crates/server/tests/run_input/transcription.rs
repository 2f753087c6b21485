//! Speech to text: recordings are checked, passed to the configured endpoint, and not stored. The endpoint's misbehaviour is a
//! 502, and shows nothing of its key.

use ostler_protocol::FailureKind::*;
use ostler_run_input::config::transcription::TranscriptionSection;
use ostler_stand_ins::speech;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Answer, Caller, Engine, TestServer, WAV, one_engine};

const TRANSCRIBE: &str = "/api/v1/agent/transcribe";
const KEY: &str = "planted-key-of-the-speech-endpoint";

/// A server with the endpoint, and the directory of the endpoint's key.
async fn with_endpoint(engine: Engine, base_url: String) -> (TestServer, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("speech-key");
    std::fs::write(&key_file, format!("{KEY}\n")).unwrap();
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|section: &mut TranscriptionSection| {
            (section.base_url, section.key_file) = (Some(base_url), Some(key_file));
            section.timeout_ms = 1_000;
        });
    });
    (server.await, directory)
}

async fn transcribe(caller: &Caller, audio: &[u8]) -> Answer {
    caller.send_form(TRANSCRIBE, &[("file", audio)]).await
}

#[one_engine]
async fn a_recording_is_transcribed_by_the_endpoint(engine: Engine) {
    let endpoint = speech();
    let (server, _key) = with_endpoint(engine, endpoint.base_url()).await;
    assert_eq!(transcribe(&server, WAV).await.with_status(200), json!({"text": "hello there"}));
    let seen = endpoint.seen().remove(0);
    assert_eq!((seen.path.as_str(), seen.authorization), ("/v1/audio/transcriptions", Some(format!("Bearer {KEY}"))));
    let nobody = server.with_token(None);
    transcribe(&nobody, WAV).await.refused_as(Unauthenticated, "AUTH_UNAUTHORIZED");
}

#[one_engine]
async fn a_recording_that_cannot_be_transcribed_is_rejected_before_it_is_sent(engine: Engine) {
    let endpoint = speech();
    let (server, _key) = with_endpoint(engine, endpoint.base_url()).await;
    let large = vec![0; 10 * 1024 * 1024 + 1];
    for (audio, code) in [
        (&b""[..], "AGENT_AUDIO_EMPTY"),
        (b"ID3 and the rest of it", "AGENT_AUDIO_UNSUPPORTED_FORMAT"),
        (&large, "AGENT_AUDIO_TOO_LARGE"),
    ] {
        let refused = transcribe(&server, audio).await;
        assert_eq!((refused.status, &refused.body["code"]), (400, &json!(code)), "{}", refused.text);
    }
    assert_eq!(server.send_form(TRANSCRIBE, &[("file", WAV), ("file", WAV)]).await.status, 422);
    assert_eq!(server.send_form(TRANSCRIBE, &[("sound", WAV)]).await.status, 422);
    assert!(endpoint.seen().is_empty());
}

#[one_engine]
async fn an_endpoint_that_misbehaves_is_unavailable_and_its_key_is_not_shown(engine: Engine) {
    let endpoint = speech();
    let mut addresses: Vec<String> = ["repeats", "fails", "nonsense", "endless", "breaks", "holds"]
        .map(|address| format!("{}/{address}", endpoint.base_url()))
        .into();
    addresses.push("http://127.0.0.1:1/v1".to_owned());
    // Concurrently, because one of them waits.
    let refused = addresses.iter().map(async |address| {
        let (server, _key) = with_endpoint(engine, address.clone()).await;
        transcribe(&server, WAV).await
    });
    for (address, refused) in addresses.iter().zip(futures_util::future::join_all(refused).await) {
        assert_eq!((refused.status, &refused.body["code"]), (502, &json!("AGENT_ASR_UNAVAILABLE")), "{address}");
        assert!(!refused.text.contains(KEY), "{}", refused.text);
    }
    let unset = TestServer::start(engine).await;
    let refused = transcribe(&unset, WAV).await;
    assert_eq!((refused.status, &refused.body["code"]), (502, &json!("AGENT_ASR_UNAVAILABLE")), "{}", refused.text);
}
