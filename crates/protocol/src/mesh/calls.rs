//! Calls to the gateway, and the replies that JSON-RPC 2.0 prescribes for invalid ones: text that is not JSON, JSON
//! that is no request, an unknown method, parameters that do not fit. A reply names the request wherever its id could
//! be read.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Failure, RawJson, Rule,
    json::read_shape,
    rpc::{INVALID_REQUEST, NotAFrame, PARSE_ERROR, RpcError, RpcFrame, RpcId, Version},
};

/// A frame holds one message with its envelope, and no more.
pub const FRAME_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A request. What has no id is a notification, which a gateway takes none of and does not answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: RpcId,
    pub method: String,
    /// An object, or `null` where there were none.
    params: RawJson,
}

/// What came instead of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum NotACall {
    /// To be answered with this frame.
    Refused(Box<RpcFrame>),
    /// A notification or a response: it gets no reply.
    Ignored,
}

impl Call {
    pub fn read(text: &[u8]) -> Result<Self, NotACall> {
        if text.len() > FRAME_BYTES_MAX {
            let message = format!("a frame of {} bytes, the limit is {FRAME_BYTES_MAX}", text.len());
            return Err(refused(None, RpcError::new(INVALID_REQUEST, message)));
        }
        match RpcFrame::read_as(text, Version::Two) {
            Ok(RpcFrame::Request { id, method, params }) => Ok(Self { id, method, params }),
            Ok(_) => Err(NotACall::Ignored),
            Err(fault) => Err(diagnose(text, &fault)),
        }
    }

    /// The parameters as their method reads them.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let text = if self.params.is_null() { "{}" } else { self.params.as_str() };
        read_shape(Rule::ParamsInvalid, "params", text)
    }

    pub fn answer(self, result: RawJson) -> RpcFrame {
        RpcFrame::Answer { id: self.id, result }
    }

    pub fn refuse(self, error: RpcError) -> RpcFrame {
        RpcFrame::Error { id: Some(self.id), error }
    }

    /// The size of the parameters, for the limit of their method.
    pub fn params_size(&self) -> usize {
        self.params.size()
    }
}

fn refused(id: Option<RpcId>, error: RpcError) -> NotACall {
    NotACall::Refused(Box::new(RpcFrame::Error { id, error }))
}

#[derive(serde::Deserialize)]
struct Skimmed {
    id: Option<RpcId>,
}

/// Distinguishes text that is not JSON from JSON that is no request. The text is parsed again only on this path.
fn diagnose(text: &[u8], fault: &NotAFrame) -> NotACall {
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        // What can be skimmed but not read is JSON of a kind, and its sender waits for an answer to it.
        return match serde_json::from_slice::<Skimmed>(text) {
            Ok(Skimmed { id: Some(id) }) => {
                let message = "Invalid Request: nested too deeply, or contains an invalid string or number";
                refused(Some(id), RpcError::new(INVALID_REQUEST, message))
            }
            _ => refused(None, RpcError::new(PARSE_ERROR, "Parse error")),
        };
    };
    let why = match (&value, fault) {
        (Value::Array(_), _) => "batches are not taken".to_owned(),
        (Value::Object(_), NotAFrame::Misshapen(why)) => (*why).to_owned(),
        _ => "not an object".to_owned(),
    };
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    refused(id, RpcError::new(INVALID_REQUEST, format!("Invalid Request: {why}")))
}

/// A failure in the mesh's encoding: the code that clients sort by, and beside it our own kind and the trace id.
pub fn error(failure: &Failure, trace_id: &str) -> RpcError {
    let row = failure.kind.row();
    let mut data = failure.details.as_deref().cloned().unwrap_or_default();
    data.insert("kind".into(), json!(row.name));
    // A failure may override the retry flag of its kind.
    data.entry("retry").or_insert_with(|| json!(row.retry));
    data.insert("trace_id".into(), json!(trace_id));
    let data = Some(RawJson::of(&data));
    let code = failure.broken_rule().and_then(|rule| rule.row().rpc_code).unwrap_or(row.rpc_code.into());
    RpcError { code, message: failure.message.clone(), data }
}

/// The failure of a call to an unknown method.
pub fn unknown_method(method: &str) -> Failure {
    Failure::rule(Rule::MethodUnknown, format!("Method not found: {method:?}"))
}

/// The failure of a call that arrives before the connection has introduced itself.
pub fn not_introduced(method: &str) -> Failure {
    Failure::rule(Rule::MeshFresh, format!("{method} requires auth.connect first"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::FailureKind;

    #[test]
    fn who_nests_too_deeply_is_answered() {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"x","params":{{"a":{}1{}}}}}"#,
            "[".repeat(200),
            "]".repeat(200)
        );
        let answer = answered(&text);
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &json!(7)));
    }

    #[test]
    fn what_passes_by_itself_has_a_code_that_the_published_client_tries_again_on() {
        for kind in [FailureKind::InfraFailed, FailureKind::Overloaded, FailureKind::Draining] {
            let code = error(&Failure::new(kind, "later"), "").code;
            assert!((5_000..6_000).contains(&code), "{kind}: {code}");
        }
    }

    fn answered(text: &str) -> Value {
        match Call::read(text.as_bytes()) {
            Err(NotACall::Refused(frame)) => serde_json::from_str(&frame.write(Version::Two)).unwrap(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_call_is_read_with_its_parameters() {
        let call = Call::read(br#"{"jsonrpc":"2.0","id":"rpc-1","method":"meta.ping","params":{"a":1}}"#).unwrap();
        assert_eq!((call.id.to_string().as_str(), call.method.as_str()), ("rpc-1", "meta.ping"));
        assert_eq!(call.params::<Value>().unwrap(), json!({"a": 1}));
        let call = Call::read(br#"{"jsonrpc":"2.0","id":7,"method":"meta.ping"}"#).unwrap();
        assert_eq!(call.params::<Value>().unwrap(), json!({}));
        let answer = call.answer(RawJson::of(&json!({"pong": true})));
        assert_eq!(answer.write(Version::Two), r#"{"jsonrpc":"2.0","id":7,"result":{"pong":true}}"#);
    }

    /// The examples of the specification, as far as a server without batches has an answer to them.
    #[test]
    fn invalid_requests_have_the_errors_of_the_specification() {
        for text in [r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#, "", "{", "hello", "\u{1}", "[1"]
        {
            let answer = answered(text);
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32700), &Value::Null), "{text}");
        }
        for (text, id) in [
            (r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#, Value::Null),
            (r#"{"jsonrpc": "2.0", "method": 1, "id": 5}"#, json!(5)),
            (r#"{"jsonrpc": "2.0", "method": "x", "params": "bar", "id": "a"}"#, json!("a")),
            (r#"{"jsonrpc": "2.0", "method": "x", "params": null, "id": "a"}"#, json!("a")),
            (r#"{"jsonrpc": "1.0", "method": "x", "id": "a"}"#, json!("a")),
            (r#"{"method": "x", "id": "a"}"#, json!("a")),
            (r#"{"jsonrpc": "2.0", "method": "x", "id": null}"#, Value::Null),
            (r#"{"jsonrpc": "2.0", "method": "x", "id": 1.5}"#, Value::Null),
            (r#"{"jsonrpc": "2.0", "method": "x", "id": {}}"#, Value::Null),
            (r#"{"jsonrpc": "2.0", "method": "", "id": 1}"#, json!(1)),
            (r#"{"jsonrpc": "2.0", "id": 1}"#, json!(1)),
            ("[]", Value::Null),
            ("[1,2,3]", Value::Null),
            (r#"[{"jsonrpc": "2.0", "method": "x", "id": 1}]"#, Value::Null),
            ("7", Value::Null),
            ("null", Value::Null),
        ] {
            let answer = answered(text);
            assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32600), &id), "{text}");
            assert_eq!(answer["jsonrpc"], "2.0");
        }
    }

    #[test]
    fn notifications_and_answers_get_no_answer() {
        for text in [
            r#"{"jsonrpc":"2.0","method":"x","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
        ] {
            assert_eq!(Call::read(text.as_bytes()), Err(NotACall::Ignored), "{text}");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_unread() {
        let frame = |length: usize| {
            let start = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":""#;
            format!("{start}{}\"}}}}", "x".repeat(length - start.len() - 3))
        };
        assert!(Call::read(frame(FRAME_BYTES_MAX).as_bytes()).is_ok());
        assert_eq!(answered(&frame(FRAME_BYTES_MAX + 1))["error"]["code"], -32600);
    }

    #[test]
    fn a_failure_has_its_kind_and_trace_beside_the_code() {
        let failure = Failure::not_found("AID").detail("aid", "x");
        let error = error(&failure, "tr-1");
        assert_eq!((error.code, error.message.as_str()), (-32008, "no such AID"));
        let data = error.data.unwrap().to_value();
        assert_eq!(data, json!({"aid": "x", "kind": "not-found", "retry": false, "trace_id": "tr-1"}));
        assert_eq!(super::error(&unknown_method("x.y"), "t").code, -32601);
        let call = Call::read(br#"{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}"#).unwrap();
        let failure = call.params::<Value>().unwrap_err();
        assert_eq!(super::error(&failure, "t").code, -32602);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, text in "\\PC*") {
            let _ = Call::read(&bytes);
            let _ = Call::read(text.as_bytes());
        }
    }
}
