//! Bounds of request bodies that hold before a body is parsed: its size, how deeply it nests and how many values it holds.
//! Parsing, redacting and hashing cost far more than counting, so that a body which breaks a bound is cheap to reject.

use serde::de::DeserializeOwned;

use crate::{
    Failure, Rule,
    daemon::{
        agents::{AgentBody, GenerateAgent},
        approval_modes::SetApprovalMode,
        asides::AskBtw,
        auth_providers::InstallProvider,
        branches::BranchSession,
        device_flows::StartDeviceFlow,
        extensions::{ExtensionScope, InstallExtension},
        files::{EditWorkspaceFile, FILE_BODY_BYTES_MAX, WriteWorkspaceFile},
        languages::SetLanguage,
        mcp::{AddMcpServer, ToggleTool},
        memory::WriteMemory,
        models::SetModel,
        prompts::SubmitPrompt,
        rewinds::RewindSession,
        sessions::{OpenDaemonSession, RestoreSession, UpdateMetadata},
        settings::SetSetting,
        shell::RunShell,
        tasks::CancelTask,
        votes::CastVote,
        workspace::InitWorkspace,
    },
    kernel::{
        commands::{AckCommand, CreateCommand, PatchStatus},
        events::AppendEvents,
        leases::{ClaimRun, PatchLease},
        permissions::AnswerPermission,
        provider_profiles::{PutConfig, PutCredential, ValidateProfile},
        runner_jobs::{ClaimRunnerJob, CreateRunnerJob},
        runners::RegisterRunner,
        runs::{Cancel, CreateRun, UpdateRun},
        session_storage::{RefreshStorage, SweepStorage},
        sessions::{ControlSession, CreateSession, ReadSession, UpdateSession},
    },
    limits::{
        BODY_BYTES_MAX, COMMAND_PAYLOAD_BYTES_MAX, JSON_DEPTH_MAX, JSON_VALUES_MAX, SMALL_BODY_BYTES_MAX,
        WORK_BODY_BYTES_MAX,
    },
    mcp_server::messages::McpMessage,
    mesh::identities::{CreateInvite, IssueCertificate, RevokeIdentity},
    retention::{PlaceHold, SweepRetention},
    run_input::{
        automations::{CreateAutomation, StartAutomation, UpdateAutomation},
        calendar::{CreateCalendarEvent, UpdateCalendarEvent},
    },
    tokens::CreateToken,
    tools::wire::{CallTool, TryTool},
    trust::{
        agents::{CreateAgent, CreateAgentToken, DiffManifest, UpdateAgent},
        relations::{Answers, CreateRelation, UseScope},
        webhooks::PutWebhook,
    },
    users::{CreateUser, CreateUserToken, UpdateUser},
};

/// A JSON body of a request, with the bounds that hold before it is parsed.
pub trait RequestBody: DeserializeOwned + Send + 'static {
    /// Most bytes of its text, as it is sent.
    const BYTES_MAX: usize;
    /// Most commas and colons in it, outside strings. Together they grow with the members and items at every depth.
    const VALUES_MAX: usize;
    /// Most bytes of one of its strings, as it is sent.
    const STRING_BYTES_MAX: usize = STRING_BYTES_MAX;
}

macro_rules! bodies {
    ($($body:ty: $bytes_max:expr, $values_max:expr $(, strings $string_max:expr)?;)*) => {
        $(impl RequestBody for $body {
            const BYTES_MAX: usize = $bytes_max;
            const VALUES_MAX: usize = $values_max;
            $(const STRING_BYTES_MAX: usize = $string_max;)?
        })*

        /// Every body type with its bounds, for the documentation's test.
        pub const BODIES: &[(&str, usize, usize)] = &[$((stringify!($body), $bytes_max, $values_max)),*];
    };
}

const SMALL_VALUES_MAX: usize = 1_000;
/// A manifest of the largest size, with every character escaped.
const MANIFEST_BODY_BYTES_MAX: usize = 1024 * 1024;

bodies! {
    CreateRun: WORK_BODY_BYTES_MAX, JSON_VALUES_MAX;
    UpdateRun: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateCommand: WORK_BODY_BYTES_MAX, JSON_VALUES_MAX;
    AppendEvents: BODY_BYTES_MAX, 5 * JSON_VALUES_MAX;
    Cancel: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PatchStatus: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    AckCommand: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ClaimRun: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PatchLease: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateRunnerJob: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ClaimRunnerJob: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RegisterRunner: 2 * SMALL_BODY_BYTES_MAX, JSON_VALUES_MAX;
    AnswerPermission: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    UpdateSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ReadSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ControlSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RefreshStorage: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SweepStorage: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PutCredential: WORK_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PutConfig: WORK_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ValidateProfile: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SweepRetention: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PlaceHold: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateToken: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateUser: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    UpdateUser: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateUserToken: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateAgent: MANIFEST_BODY_BYTES_MAX, 10 * JSON_VALUES_MAX;
    UpdateAgent: MANIFEST_BODY_BYTES_MAX, 10 * JSON_VALUES_MAX;
    DiffManifest: MANIFEST_BODY_BYTES_MAX, 10 * JSON_VALUES_MAX;
    CreateAgentToken: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateRelation: MANIFEST_BODY_BYTES_MAX, JSON_VALUES_MAX;
    Answers: MANIFEST_BODY_BYTES_MAX, JSON_VALUES_MAX;
    UseScope: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    PutWebhook: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    IssueCertificate: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateInvite: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RevokeIdentity: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    OpenDaemonSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RestoreSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    UpdateMetadata: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SubmitPrompt: FILE_BODY_BYTES_MAX, JSON_VALUES_MAX, strings FILE_BODY_BYTES_MAX;
    AskBtw: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SetModel: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SetLanguage: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CancelTask: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CastVote: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    WriteWorkspaceFile: FILE_BODY_BYTES_MAX, SMALL_VALUES_MAX, strings FILE_BODY_BYTES_MAX;
    EditWorkspaceFile: FILE_BODY_BYTES_MAX, SMALL_VALUES_MAX, strings FILE_BODY_BYTES_MAX;
    WriteMemory: BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SetSetting: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    InitWorkspace: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    InstallProvider: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    StartDeviceFlow: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    AddMcpServer: WORK_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ToggleTool: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    SetApprovalMode: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    AgentBody: WORK_BODY_BYTES_MAX, JSON_VALUES_MAX;
    GenerateAgent: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    InstallExtension: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    ExtensionScope: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RewindSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    BranchSession: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    RunShell: 2 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CallTool: 8 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    TryTool: 2 * SMALL_BODY_BYTES_MAX, JSON_VALUES_MAX;
    CreateAutomation: 2 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    UpdateAutomation: 2 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    StartAutomation: SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    CreateCalendarEvent: 4 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    UpdateCalendarEvent: 4 * SMALL_BODY_BYTES_MAX, SMALL_VALUES_MAX;
    McpMessage: WORK_BODY_BYTES_MAX, JSON_VALUES_MAX;
}

/// Most bytes of a string as it is sent. Few fields accept more than a command's payload, and no escape is longer than six bytes.
const STRING_BYTES_MAX: usize = 6 * COMMAND_PAYLOAD_BYTES_MAX;

/// Checks the bounds of JSON text that arrives in pieces: how deeply it nests, how many values it contains, and whether it has
/// a string that no field accepts. One pass, which stops at the first bound that is exceeded and costs much less than
/// parsing. It does not check whether the text is valid JSON.
pub struct JsonScan {
    values_max: usize,
    string_bytes_max: usize,
    values: usize,
    depth: usize,
    /// Bytes so far of the string that the text is in.
    string: Option<usize>,
    /// Whether the last piece ended with a backslash in a string.
    is_escaped: bool,
}

/// Which bytes mean something outside strings.
static IS_STRUCTURE: [bool; 256] = {
    let (mut table, mut at) = ([false; 256], 0);
    let bytes = b"\"{}[],:";
    while at < bytes.len() {
        table[bytes[at] as usize] = true;
        at += 1;
    }
    table
};

impl JsonScan {
    pub fn new(values_max: usize) -> Self {
        let string_bytes_max = STRING_BYTES_MAX;
        Self { values_max, string_bytes_max, values: 0, depth: 0, string: None, is_escaped: false }
    }

    /// With another bound for strings.
    pub fn with_string_bytes_max(self, string_bytes_max: usize) -> Self {
        Self { string_bytes_max, ..self }
    }

    /// Checks the next piece of the text.
    pub fn feed(&mut self, text: &[u8]) -> Result<(), Failure> {
        let mut at = 0;
        loop {
            if let Some(before) = self.string {
                let (end, is_over) = self.string_end(text, at);
                let bytes = before + (end - at);
                let bytes_max = self.string_bytes_max;
                if bytes > bytes_max {
                    return Err(Failure::too_large(Rule::JsonString, "a string of the body", bytes, bytes_max));
                }
                self.string = (!is_over).then_some(bytes);
                at = end;
            }
            while text.get(at).is_some_and(|byte| !IS_STRUCTURE[usize::from(*byte)]) {
                at += 1;
            }
            let Some(&byte) = text.get(at) else { return Ok(()) };
            at += 1;
            match byte {
                b'"' => self.string = Some(0),
                b'{' | b'[' => self.open()?,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => self.count()?,
            }
        }
    }

    fn open(&mut self) -> Result<(), Failure> {
        self.depth += 1;
        if self.depth <= JSON_DEPTH_MAX {
            return Ok(());
        }
        let message = format!("the body nests deeper than {JSON_DEPTH_MAX} levels");
        Err(Failure::invalid(Rule::JsonDepth, message).detail("depthMax", JSON_DEPTH_MAX))
    }

    fn count(&mut self) -> Result<(), Failure> {
        self.values += 1;
        if self.values <= self.values_max {
            return Ok(());
        }
        let max = self.values_max;
        let message = format!("the body holds too many members and items: over {max} commas and colons");
        Err(Failure::rule(Rule::JsonValues, message).detail("valuesMax", max))
    }

    /// The position after the quote that ends the string, or the end of the text; and whether the string is over.
    fn string_end(&mut self, text: &[u8], mut at: usize) -> (usize, bool) {
        if self.is_escaped && at < text.len() {
            self.is_escaped = false;
            at += 1;
        }
        // Most strings are short; setting up a search would cost more than a step per byte.
        for &byte in &text[at..text.len().min(at + SHORT_STRING_BYTES)] {
            match byte {
                b'"' => return (at + 1, true),
                b'\\' => break,
                _ => at += 1,
            }
        }
        while let Some(found) = memchr::memchr2(b'"', b'\\', &text[at..]) {
            at += found;
            // Escapes often come in a row; a new search for each would cost more than a step per byte.
            while text.get(at) == Some(&b'\\') {
                at += 2;
            }
            if at > text.len() {
                self.is_escaped = true;
                return (text.len(), false);
            }
            if text.get(at) == Some(&b'"') {
                return (at + 1, true);
            }
        }
        (text.len(), false)
    }
}

const SHORT_STRING_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::FailureKind;

    fn check_json(text: &[u8], values_max: usize) -> Result<(), Failure> {
        JsonScan::new(values_max).feed(text)
    }

    fn refused(text: &str, values_max: usize) -> Option<String> {
        check_json(text.as_bytes(), values_max).err().and_then(|failure| failure.rule_name().map(str::to_owned))
    }

    #[test]
    fn a_bound_holds_at_its_value_and_rejects_one_more() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(refused(&nested(JSON_DEPTH_MAX), 0), None);
        assert_eq!(refused(&nested(JSON_DEPTH_MAX + 1), 0).as_deref(), Some("json-depth"));
        let items = |count: usize| json!(vec![0; count]).to_string();
        assert_eq!(refused(&items(11), 10), None);
        assert_eq!(refused(&items(12), 10).as_deref(), Some("json-values"));
    }

    #[test]
    fn a_string_that_no_field_takes_is_rejected_unparsed() {
        let body = |bytes: usize| format!(r#"{{"a":"{}","b":"{}"}}"#, "x".repeat(30), "y".repeat(bytes));
        assert!(check_json(body(STRING_BYTES_MAX - 1).as_bytes(), 3).is_ok());
        let failure = check_json(body(STRING_BYTES_MAX).as_bytes(), 3).unwrap_err();
        assert_eq!((failure.kind, failure.rule_name()), (FailureKind::PayloadTooLarge, Some("json-string")));
    }

    #[test]
    fn punctuation_inside_strings_does_not_count() {
        for text in [r#""[[{{,,::""#, r#""\"[[,,""#, r#""\\\"[,""#, r#""unterminated [,,"#, r#""\"#, r#""\\"#] {
            assert_eq!(refused(text, 0), None, "{text}");
        }
        assert_eq!(refused(r#"["\\",1]"#, 0).as_deref(), Some("json-values"));
    }

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => items.len().saturating_sub(1) + items.iter().map(count).sum::<usize>(),
            // A member has a colon, and all but the first a comma.
            Value::Object(fields) => (2 * fields.len()).saturating_sub(1) + fields.values().map(count).sum::<usize>(),
            _ => 0,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from)];
        leaf.prop_recursive(6, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_count_is_exact_for_every_document(value in any_json()) {
            let (text, count) = (value.to_string(), count(&value));
            prop_assert_eq!(refused(&text, count), None);
            if count > 0 {
                prop_assert_eq!(refused(&text, count - 1), Some("json-values".to_owned()));
            }
        }

        #[test]
        fn pieces_count_like_the_whole(text in r#"[\\\\"\[\]{},:a ]{0,60}"#, cut in 0_usize..60, values_max in 0_usize..6) {
            let (first, rest) = text.as_bytes().split_at(cut.min(text.len()));
            let mut scan = JsonScan::new(values_max);
            let in_pieces = scan.feed(first).and_then(|()| scan.feed(rest));
            prop_assert_eq!(in_pieces.is_ok(), check_json(text.as_bytes(), values_max).is_ok());
        }
    }
}
