//! The one table of the gateway's methods: name, parameters, result, who may call, limits. Dispatch is a match over it, and
//! the page that people read is printed from it.

use serde_json::Value;
use utoipa::{PartialSchema, ToSchema, openapi::RefOr, openapi::schema::Schema};

use super::{auth::*, calls, connections::*, messages::*, meta::*, prekeys::*};
use crate::Rule;

use crate::json::value_of;

/// When a method may be called, and so by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStage {
    /// By any client, on a connection that has not introduced itself; the call proves by itself what it must.
    Fresh,
    /// By an identity, on the connection that it has introduced as its own.
    Session,
}

#[derive(Debug)]
pub struct MethodRow {
    pub method: Method,
    pub name: &'static str,
    pub stage: CallStage,
    /// Per identity; before there is one, per address.
    pub calls_per_minute_max: u32,
    pub params_bytes_max: usize,
    pub meaning: &'static str,
    params: fn() -> RefOr<Schema>,
    result: fn() -> RefOr<Schema>,
    /// The types that they refer to.
    types: fn(&mut Types),
}

type Types = Vec<(String, RefOr<Schema>)>;

macro_rules! methods {
    ($($method:ident $name:literal $stage:ident $calls:literal $bytes:expr, $params:ty => $result:ty, $meaning:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = $meaning] $method,)*
        }

        impl Method {
            pub const ALL: &'static [MethodRow] = &[$(MethodRow {
                method: Method::$method,
                name: $name,
                stage: CallStage::$stage,
                calls_per_minute_max: $calls,
                params_bytes_max: $bytes,
                meaning: $meaning,
                params: <$params as PartialSchema>::schema,
                result: <$result as PartialSchema>::schema,
                types: |types| {
                    <$params as ToSchema>::schemas(types);
                    <$result as ToSchema>::schemas(types);
                },
            },)*];

            /// `None` if there is no such method.
            pub fn find(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$method),)*
                    _ => None,
                }
            }
        }
    };
}

/// Most parameters are a few names and signatures.
const SMALL: usize = 8 * 1024;
const WITH_CERTIFICATE: usize = CERTIFICATE_PEM_BYTES_MAX + SMALL;
const WITH_PAYLOAD: usize = PAYLOAD_BYTES_MAX + SMALL;
/// A hundred names or ids of the greatest length.
const WITH_LIST: usize = 32 * 1024;

methods! {
    CreateAid "auth.create_aid" Fresh 600 SMALL, CreateAidParams => CreateAidResult, "Registers a name for a key.";
    Login1 "auth.aid_login1" Fresh 6000 WITH_CERTIFICATE, Login1Params => Login1Result, "Begins a login: the server proves itself and gives a nonce.";
    Login2 "auth.aid_login2" Fresh 6000 SMALL, Login2Params => Login2Result, "Ends a login: the identity signs the nonce and gets its tokens.";
    RefreshToken "auth.refresh_token" Fresh 6000 SMALL, RefreshTokenParams => RefreshTokenResult, "Exchanges a refresh token, once.";
    Connect "auth.connect" Fresh 6000 SMALL, ConnectParams => ConnectResult, "Introduces the connection: who, which device and slot, how messages are delivered.";
    DownloadCert "auth.download_cert" Session 60 SMALL, DownloadCertParams => CertResult, "A certificate, by name or version.";
    RequestCert "auth.request_cert" Session 10 SMALL, RequestCertParams => CertResult, "The next certificate: for the same key, as auth.renew_cert, or for another, as auth.rekey.";
    RenewCert "auth.renew_cert" Session 10 SMALL, RenewCertParams => CertResult, "The next certificate for the same key.";
    Rekey "auth.rekey" Session 10 SMALL, RekeyParams => CertResult, "A certificate for a new key; the old one is revoked.";
    Send "message.send" Session 60000 WITH_PAYLOAD, SendParams => SendResult, "Sends a message to an identity.";
    Pull "message.pull" Session 6000 SMALL, PullParams => PullResult, "Messages after a number, durable and queued ones merged.";
    Ack "message.ack" Session 60000 SMALL, AckParams => AckResult, "Reports how far messages were received.";
    Recall "message.recall" Session 60 WITH_LIST, RecallParams => RecallResult, "Takes messages back, within two minutes.";
    QueryOnline "message.query_online" Session 120 WITH_LIST, QueryOnlineParams => QueryOnlineResult, "Which identities have a connection now.";
    PutPrekey "message.e2ee.put_prekey" Session 120 SMALL, Prekey => PutPrekeyResult, "Leaves a prekey for senders.";
    GetPrekey "message.e2ee.get_prekey" Session 6000 SMALL, GetPrekeyParams => GetPrekeyResult, "An identity's prekeys, the newest of each device.";
    Ping "meta.ping" Session 600 SMALL, NoParams => PingResult, "Whether the gateway is there.";
    Status "meta.status" Session 120 SMALL, NoParams => StatusResult, "What the gateway knows of this connection.";
    TrustRoots "meta.trust_roots" Session 60 SMALL, NoParams => TrustRootsResult, "The signed list of trusted roots.";
}

impl Method {
    pub fn row(self) -> &'static MethodRow {
        &Self::ALL[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }
}

/// The table as a page.
pub fn page() -> String {
    let mut page = String::from(
        "# Methods of the mesh's gateway\n\nMade from the one table in `crates/protocol/src/mesh/methods.rs`. JSON-RPC 2.0 over the \
         WebSocket at `/aun`, one object per\ntext frame, no batches. *Fresh* methods are called on a connection that has not \
         introduced itself, all others after\n`auth.connect`. Fields with a star must be given; what is not known is passed \
         over. Limits are per minute and identity, and in bytes of\n`params`. Kinds of failure have the codes of \
         [failures.md](failures.md), unless the rule ([rules.md](rules.md)) has its own.\n\n| method | called | per minute | bytes | |\n|---|---|---|---|---|\n",
    );
    for row in Method::ALL {
        let stage = if row.stage == CallStage::Fresh { "fresh" } else { "in a session" };
        let MethodRow { name, calls_per_minute_max, params_bytes_max, meaning, .. } = row;
        page += &format!("| `{name}` | {stage} | {calls_per_minute_max} | {params_bytes_max} | {meaning} |\n");
    }
    for row in Method::ALL {
        page += &format!("\n## {}\n", row.name);
        page += &fields("parameter", &(row.params)());
        page += &fields("result", &(row.result)());
        if row.method == Method::Connect {
            page += &refusals();
        }
    }
    page += "\n# What the gateway sends by itself\n\nNotifications: they have no `id`, and are not answered.\n";
    let mut types = Types::new();
    for (name, meaning, schema, of) in events() {
        page += &format!("\n## {name}\n\n{meaning}\n{}", fields("parameter", &schema));
        of(&mut types);
    }
    Method::ALL.iter().for_each(|row| (row.types)(&mut types));
    types.sort_by(|one, other| one.0.cmp(&other.0));
    types.dedup_by(|one, other| one.0 == other.0);
    page += "\n# Types\n";
    for (name, schema) in types {
        let section = fields("field", &schema);
        let section = if section.is_empty() { format!("\n{}\n", kind(&schema_value(&schema))) } else { section };
        page += &format!("\n## {name}\n{section}");
    }
    page
}

/// How `auth.connect` refuses, with codes that clients know.
fn refusals() -> String {
    let mut table = String::from("\n| refusal | code | kind | rule | retry |\n|---|---|---|---|---|\n");
    for refused in Refused::ALL {
        let (failure, code) = (refused.failure(&Versions::default()), refused.code());
        let error = calls::error(&failure, "").data.map(|data| data.to_value()).unwrap_or_default();
        let (kind, rule) = (failure.kind.as_str(), failure.broken_rule().map_or("", Rule::as_str));
        let retry = if error["retry"] == true { "yes" } else { "no" };
        table += &format!("| {} | {code} | `{kind}` | `{rule}` | {retry} |\n", failure.message);
    }
    table
}

type MethodEvent = (&'static str, &'static str, RefOr<Schema>, fn(&mut Types));

fn events() -> [MethodEvent; 5] {
    [
        (CHALLENGE, "The first frame of every connection.", Challenge::schema(), Challenge::schemas),
        (RECEIVED_EVENT, "A message for this identity.", Message::schema(), Message::schemas),
        (ACK_EVENT, "Messages of this identity were received.", AckEvent::schema(), AckEvent::schemas),
        (RECALLED_EVENT, "Messages for this identity were recalled.", RecalledEvent::schema(), RecalledEvent::schemas),
        (
            DISCONNECT_EVENT,
            "The gateway ends the connection; do not reconnect.",
            Disconnect::schema(),
            Disconnect::schemas,
        ),
    ]
}

fn schema_value(schema: &RefOr<Schema>) -> Value {
    value_of(schema)
}

fn fields(title: &str, schema: &RefOr<Schema>) -> String {
    let schema = schema_value(schema);
    let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) else {
        return String::new();
    };
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    let mut table = format!("\n| {title} | type | |\n|---|---|---|\n");
    for (name, property) in properties {
        let star = if required(name) && title == "parameter" { "*" } else { "" };
        let meaning = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        table += &format!("| `{name}`{star} | {} | {meaning} |\n", kind(property));
    }
    table
}

/// A property's type in a word or two.
fn kind(property: &Value) -> String {
    let referred = |value: &Value| Some(value["$ref"].as_str()?.rsplit('/').next()?.to_owned());
    let any = ["oneOf", "anyOf", "allOf"].iter().find_map(|of| property[of].as_array());
    if let Some(name) = referred(property).or_else(|| any?.iter().find_map(referred)) {
        return name;
    }
    if let Some(words) = property["enum"].as_array() {
        return words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let plain = match &property["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|one| *one != "null").unwrap_or_default(),
        one => one.as_str().unwrap_or("object"),
    };
    if plain == "array" { format!("list of {}", kind(&property["items"])) } else { plain.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_in_its_own_row_under_its_own_name() {
        for (index, row) in Method::ALL.iter().enumerate() {
            assert_eq!(row.method as usize, index);
            assert_eq!(Method::find(row.name), Some(row.method));
            assert!(row.calls_per_minute_max > 0 && row.params_bytes_max <= super::super::calls::FRAME_BYTES_MAX);
        }
        for name in ["", "message", "message.Send", "search.query", "group.list_my"] {
            assert_eq!(Method::find(name), None);
        }
    }

    #[test]
    fn the_page_names_every_method_and_marks_what_must_be_given() {
        let page = page();
        for row in Method::ALL {
            assert!(page.contains(&format!("| `{}` |", row.name)) && page.contains(&format!("\n## {}\n", row.name)));
        }
        for line in [
            "| `to`* | string |",
            "| `payload`* | object | An object; its meaning is up to the identities. |",
            "| `message_id` | string |",
            "| `aids`* | list of string | At most 100.",
            "| `auth`* | Token |",
            "| `messages` | list of Message |",
            "\n## DeliveryMode\n",
            "\n## event/message.received\n",
            "| slot_conflict | 5009 | `state-conflict` | `mesh-slot-taken` | yes |",
            "| the token is not valid | 4001 | `unauthenticated` | `mesh-token` | no |",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
