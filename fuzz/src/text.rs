//! Texts: the frames of the gateway with the parameters in them, and what agents say of themselves.

use ostler_protocol::{
    mesh::{
        Aid,
        agent_md::{
            AGENT_MD_BYTES_MAX, AgentMd, DESCRIPTION_CHARS_MAX, NAME_CHARS_MAX, TAG_CHARS_MAX, TAGS_MAX,
            VERSION_BYTES_MAX,
        },
        auth::{CreateAidParams, Login1Params, Login2Params, RefreshTokenParams, RekeyParams, RequestCertParams},
        calls::{Call, NotACall},
        connections::{ConnectParams, DEVICE_BYTES_MAX},
        messages::{
            AckParams, COPIES_MAX, PullParams, QUERY_AIDS_MAX, QueryOnlineParams, RECALL_IDS_MAX, RecallParams,
            SendContents, SendParams,
        },
        methods::Method,
        prekeys::{GetPrekeyParams, Prekey},
    },
    rpc::Version,
};
use serde_json::Value;

use crate::Target;

pub(crate) static FRAME: Target = Target {
    name: "frame",
    seeds: frames,
    words: &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "null",
        "true",
        "-1",
        "1e999",
        "18446744073709551616",
        "\"id\":",
        "\"jsonrpc\":\"2.0\"",
        "\"method\":",
        "\"params\":",
        "\"result\":",
        "\"payload\":{}",
        "\"encrypted\":true",
        "\"type\":\"e2ee.multi_device\"",
        "\"type\":\"e2ee.encrypted\"",
        "\"recipient_copies\":",
        "\"device_id\":\"\"",
        "\"seq\":",
        "\"limit\":",
        "\u{feff}",
        "\u{1f600}",
    ],
    attempt: frame,
};

fn frames() -> Vec<Vec<u8>> {
    let call = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":"rpc-1","method":"{method}","params":{params}}}"#)
    };
    let to = r#""to":"bobby.probe.test","message_id":"m-1""#;
    let copy = r#"{"device_id":"d-1","envelope":{"type":"e2ee.encrypted","x":1}}"#;
    let frames = [
        call("auth.create_aid", r#"{"aid":"alice.probe.test","public_key":"eA==","curve":"P-256"}"#),
        call("auth.aid_login1", r#"{"aid":"alice.probe.test","cert":"-----BEGIN","client_nonce":"eA=="}"#),
        call(
            "auth.aid_login2",
            r#"{"aid":"alice.probe.test","request_id":"r","nonce":"n","client_time":"1794700691.7287993","signature":"eA=="}"#,
        ),
        call("auth.refresh_token", r#"{"refresh_token":"t"}"#),
        call(
            "auth.connect",
            r#"{"nonce":"n","auth":{"method":"kite_token","token":"t"},"protocol":{"min":"1.0","max":"1.0"},"device":{"id":"d","type":"sdk"},"client":{"slot_id":"s"},"delivery_mode":{"mode":"queue","routing":"sender_affinity","affinity_ttl_ms":1000},"capabilities":{}}"#,
        ),
        call("auth.request_cert", r#"{"request_id":"r","nonce":"n","signature":"eA=="}"#),
        call("auth.rekey", r#"{"request_id":"r","nonce":"n","signature":"eA==","public_key":"eA=="}"#),
        call("message.send", &format!(r#"{{{to},"payload":{{"type":"text","text":"你好"}}}}"#)),
        call("message.send", &format!(r#"{{{to},"payload":{{"type":"e2ee.encrypted"}},"encrypted":true}}"#)),
        call(
            "message.send",
            &format!(
                r#"{{{to},"type":"e2ee.multi_device","encrypted":true,"payload":{{"type":"e2ee.multi_device","logical_message_id":"m-1","recipient_copies":[{copy}],"self_copies":[{copy}]}}}}"#
            ),
        ),
        call("message.pull", r#"{"after_seq":7,"limit":50,"device_id":"d","slot_id":""}"#),
        call("message.ack", r#"{"seq":7,"device_id":"d"}"#),
        call("message.recall", r#"{"message_ids":["m-1","m-2"]}"#),
        call("message.query_online", r#"{"aids":["alice.probe.test"]}"#),
        call("message.e2ee.get_prekey", r#"{"aid":"alice.probe.test"}"#),
        call(
            "message.e2ee.put_prekey",
            r#"{"prekey_id":"k","public_key":"eA==","signature":"eA==","created_at":1794700691728,"cert_fingerprint":"sha256:00","device_id":"d"}"#,
        ),
        call("meta.ping", "{}"),
        r#"{"jsonrpc":"2.0","id":7,"method":"meta.status"}"#.into(),
        r#"{"jsonrpc":"2.0","method":"notice","params":{}}"#.into(),
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#.into(),
        r#"[{"jsonrpc":"2.0","id":1,"method":"meta.ping"}]"#.into(),
    ];
    frames.map(String::into_bytes).into()
}

/// Every input is a call, is answered as the specification prescribes, or is ignored.
fn frame(case: &[u8]) {
    match Call::read(case) {
        Ok(call) => {
            assert!(!call.method.is_empty());
            if let Some(method) = Method::find(&call.method) {
                parameters(&call, method);
            }
            let id = call.id.to_string();
            let answer: Value =
                serde_json::from_str(&call.answer(ostler_protocol::RawJson::null()).write(Version::Two))
                    .expect("an answer is JSON");
            let told = answer["id"].as_str().map_or_else(|| answer["id"].to_string(), str::to_owned);
            assert_eq!(told, id, "the answer is to this call");
        }
        Err(NotACall::Refused(answer)) => {
            let answer: Value = serde_json::from_str(&answer.write(Version::Two)).expect("a refusal is JSON");
            // What is no JSON can still be skimmed for the id of a call whose sender waits.
            let is_skimmed = serde_json::from_slice::<Value>(case).is_ok() || !answer["id"].is_null();
            assert_eq!(answer["error"]["code"], if is_skimmed { -32600 } else { -32700 }, "{answer}");
        }
        Err(NotACall::Ignored) => {}
    }
}

/// What is taken keeps the limits.
fn parameters(call: &Call, method: Method) {
    match method {
        Method::CreateAid => drop(call.params::<CreateAidParams>()),
        Method::Login1 => drop(call.params::<Login1Params>()),
        Method::Login2 => drop(call.params::<Login2Params>()),
        Method::RefreshToken => drop(call.params::<RefreshTokenParams>()),
        Method::Rekey => drop(call.params::<RekeyParams>()),
        Method::RequestCert => drop(call.params::<RequestCertParams>()),
        Method::Connect => {
            if let Some(Ok(live)) = call.params::<ConnectParams>().ok().map(|params| params.check()) {
                let place = live.place;
                assert!(place.device_id.len() <= DEVICE_BYTES_MAX && place.slot_id.len() <= DEVICE_BYTES_MAX);
                assert!(place.slot_id.is_empty() || !place.device_id.is_empty());
            }
        }
        Method::Send => {
            if let Ok(params) = call.params::<SendParams>()
                && let Ok(contents) = params.check()
            {
                sent(&params, &contents);
            }
        }
        Method::Pull => drop(call.params::<PullParams>().map(|params| params.limit())),
        Method::Ack => drop(call.params::<AckParams>()),
        Method::Recall => {
            if let Some(params) = call.params::<RecallParams>().ok().filter(|params| params.check().is_ok()) {
                assert!((1..=RECALL_IDS_MAX).contains(&params.message_ids.len()));
            }
        }
        Method::QueryOnline => {
            if let Some(params) = call.params::<QueryOnlineParams>().ok().filter(|params| params.check().is_ok()) {
                assert!((1..=QUERY_AIDS_MAX).contains(&params.aids.len()));
            }
        }
        Method::PutPrekey => drop(call.params::<Prekey>().map(|prekey| prekey.check())),
        Method::GetPrekey => drop(call.params::<GetPrekeyParams>()),
        _ => drop(call.params::<Value>()),
    }
}

fn sent(params: &SendParams, contents: &SendContents) {
    assert!(params.payload.is_object());
    if let SendContents::Copies { recipient, own } = contents {
        assert!(params.encrypted && (1..=COPIES_MAX).contains(&recipient.len()) && own.len() <= COPIES_MAX);
        for copies in [recipient, own] {
            let devices: std::collections::BTreeSet<_> = copies.iter().map(|copy| &copy.device_id).collect();
            assert_eq!(devices.len(), copies.len(), "one copy for each device");
            assert!(copies.iter().all(|copy| copy.envelope.is_object()), "clients cannot read anything else");
        }
    }
}

pub(crate) static AGENT_MD: Target = Target {
    name: "agent-md",
    seeds: descriptions,
    words: &[
        "---\n",
        "\n---\n",
        "aid: ",
        "name: ",
        "type: assistant\n",
        "version: ",
        "visibility: ",
        "tags: [",
        "tags:\n  - ",
        "&a ",
        "*a",
        "!!str ",
        "? ",
        ": ",
        "- ",
        "|\n ",
        ">\n ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "#",
        "%YAML 1.2\n",
        "\t",
        "<<: ",
        "~",
        "\u{2028}",
        "\u{feff}",
        "你",
    ],
    attempt: agent_md,
};

fn descriptions() -> Vec<Vec<u8>> {
    let plain = "---\naid: \"alice.probe.test\"\nname: \"Alice\"\ntype: \"assistant\"\nversion: \"1.0.0\"\ndescription: \"一句话描述\"\n---\n# Alice\n";
    let full = "---\naid: alice.probe.test\nname: Alice\ntype: codeagent\nversion: 1.2.3-rc.1\ndescription: Writes code.\nvisibility: unlisted\ntags: [rust, code]\nskills:\n  - name: rust\n    description: |\n      Long\n      text\n---\n\n# Alice\n\nText.\n";
    let crlf = plain.replace('\n', "\r\n");
    [plain, full, &crlf].map(|text| text.as_bytes().to_vec()).into()
}

/// What is taken is its owner's and keeps the limits.
fn agent_md(case: &[u8]) {
    let owner: Aid = "alice.probe.test".parse().expect("a name");
    let text = String::from_utf8_lossy(case);
    if let Ok(read) = AgentMd::read(&text, &owner) {
        assert!(text.len() <= AGENT_MD_BYTES_MAX);
        assert_eq!(read.aid, owner);
        assert!((1..=NAME_CHARS_MAX).contains(&read.name.chars().count()), "{:?}", read.name);
        assert!(read.description.chars().count() <= DESCRIPTION_CHARS_MAX && read.version.len() <= VERSION_BYTES_MAX);
        assert!(read.tags.len() <= TAGS_MAX && read.tags.iter().all(|tag| tag.chars().count() <= TAG_CHARS_MAX));
    }
}
