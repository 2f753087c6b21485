//! `auth.connect`: how a connection introduces itself, and when it conflicts with the other connections of its identity. A
//! call that leaves out device or slot gets this connection's, field by field; one that names another is refused.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{Aid, auth::exposed};
use crate::{Failure, Rule};

pub const PROTOCOL: &str = "1.0";
pub const DEVICE_BYTES_MAX: usize = 128;
pub const CONNECTIONS_PER_AID_MAX: usize = 64;
pub const AFFINITY_MS_MAX: i64 = 86_400_000;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConnectParams {
    /// The nonce of the connection's challenge.
    pub nonce: String,
    pub auth: Token,
    #[serde(default)]
    pub protocol: Versions,
    #[serde(default)]
    pub device: Device,
    #[serde(default)]
    pub client: Client,
    #[serde(default)]
    pub delivery_mode: DeliveryMode,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// `kite_token`.
    pub method: String,
    #[serde(serialize_with = "exposed")]
    #[schema(value_type = String)]
    pub token: SecretString,
}

/// The range of protocol versions that a peer supports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Versions {
    pub min: String,
    pub max: String,
}

impl Default for Versions {
    fn default() -> Self {
        Self { min: PROTOCOL.to_owned(), max: PROTOCOL.to_owned() }
    }
}

impl Versions {
    /// Whether ours is among them. A version that is not a pair of numbers matches nothing.
    pub fn include_ours(&self) -> bool {
        let pair = |text: &str| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        };
        match (pair(&self.min), pair(PROTOCOL), pair(&self.max)) {
            (Some(min), Some(ours), Some(max)) => min <= ours && ours <= max,
            _ => false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    /// Empty on a legacy connection, which represents the identity as a whole.
    #[serde(default)]
    pub id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Client {
    /// One of several consumers on a device; empty: the device has one.
    #[serde(default)]
    pub slot_id: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Durable, to every device.
    #[default]
    Fanout,
    /// At once, to one connection.
    Queue,
}

enum_words!(Mode { Fanout => "fanout", Queue => "queue" });

/// Which connection of a queue gets a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// `""`, as a fan-out sends it: the default.
    #[default]
    #[serde(rename = "")]
    None,
    RoundRobin,
    /// The one that got this sender's last message.
    SenderAffinity,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryMode {
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub routing: Routing,
    /// How long messages of one sender go to the same connection.
    #[serde(default)]
    pub affinity_ttl_ms: i64,
}

/// The position of a connection: which of its identity's devices and slots it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSlot {
    pub device_id: String,
    pub slot_id: String,
}

/// Whether this is a valid id of a device or a slot; an empty one means that there is only one.
pub fn is_place_id(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    id.len() <= DEVICE_BYTES_MAX && id.bytes().all(plain)
}

impl DeviceSlot {
    /// The place that a call refers to. It may name its own, in part or whole, and no other.
    pub fn of_call(&self, device_id: Option<&str>, slot_id: Option<&str>) -> Result<&Self, Failure> {
        for (name, value, own) in [("device_id", device_id, &self.device_id), ("slot_id", slot_id, &self.slot_id)] {
            if value.is_some_and(|value| value != own) {
                let message = format!("{name} is not this connection's");
                return Err(Failure::invalid(Rule::ContextMismatch, message).detail("field", name));
            }
        }
        Ok(self)
    }
}

/// A live connection, as far as another one may clash with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    pub place: DeviceSlot,
    pub delivery_mode: DeliveryMode,
}

/// Why a connection is refused. Clients match the four conflicts by these exact texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    Params(&'static str),
    Token,
    Nonce,
    Version,
    SlotRequiresDevice,
    DeviceSingletonConflict,
    SlotConflict,
    DeliveryModeConflict,
    TooMany,
}

impl Refused {
    /// Whether the reason is another connection, which may end.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::DeviceSingletonConflict | Self::SlotConflict | Self::DeliveryModeConflict)
    }

    /// One of each, for the page that people read.
    pub const ALL: [Self; 9] = [
        Self::Params("device, slot, token or delivery mode do not fit"),
        Self::Token,
        Self::Nonce,
        Self::Version,
        Self::SlotRequiresDevice,
        Self::DeviceSingletonConflict,
        Self::SlotConflict,
        Self::DeliveryModeConflict,
        Self::TooMany,
    ];

    fn row(&self) -> (Rule, &'static str) {
        match self {
            Self::Params(why) => (Rule::MeshConnect, why),
            Self::Token => (Rule::MeshToken, "the token is not valid"),
            Self::Nonce => (Rule::MeshNonce, "the nonce is not this connection's"),
            Self::Version => (Rule::MeshVersion, "protocol version mismatch"),
            Self::SlotRequiresDevice => (Rule::MeshSlot, "slot_requires_device_id"),
            Self::DeviceSingletonConflict => (Rule::MeshDeviceTaken, "device_singleton_conflict"),
            Self::SlotConflict => (Rule::MeshSlotTaken, "slot_conflict"),
            Self::DeliveryModeConflict => (Rule::MeshDeliveryMode, "delivery_mode_conflict"),
            Self::TooMany => (Rule::MeshConnections, "too many connections of this identity"),
        }
    }

    pub fn code(&self) -> i64 {
        self.row().0.rpc_code()
    }

    pub fn failure(&self, client_range: &Versions) -> Failure {
        let (rule, message) = self.row();
        let failure = Failure::rule(rule, message);
        match self {
            Self::Version => {
                failure.detail("server_range", json!(Versions::default())).detail("client_range", json!(client_range))
            }
            // The other connection may end.
            _ if self.is_conflict() => failure.detail("retry", true),
            _ => failure,
        }
    }
}

impl ConnectParams {
    /// Checks everything that depends on the parameters alone.
    pub fn check(&self) -> Result<Live, Refused> {
        let (device_id, slot_id) = (self.device.id.clone(), self.client.slot_id.clone());
        if !self.protocol.include_ours() {
            return Err(Refused::Version);
        }
        if !is_place_id(&device_id) || !is_place_id(&slot_id) {
            return Err(Refused::Params("device and slot ids are up to 128 of A-Z, a-z, 0-9, ., _ and -"));
        }
        if self.auth.method != "kite_token" || self.auth.token.expose_secret().is_empty() {
            return Err(Refused::Params("auth.method is kite_token, with a token"));
        }
        if device_id.is_empty() && !slot_id.is_empty() {
            return Err(Refused::SlotRequiresDevice);
        }
        let delivery_mode = self.delivery_mode;
        let fanout = delivery_mode.mode == Mode::Fanout;
        if (fanout && delivery_mode.routing != Routing::None)
            || !(0..=AFFINITY_MS_MAX).contains(&delivery_mode.affinity_ttl_ms)
        {
            return Err(Refused::Params("delivery_mode: routing is for queues, affinity_ttl_ms at most a day"));
        }
        Ok(Live { place: DeviceSlot { device_id, slot_id }, delivery_mode })
    }
}

/// Whether a connection may exist beside the live ones of its identity.
pub fn admit(candidate: &Live, live: &[Live]) -> Result<(), Refused> {
    if live.iter().any(|live| live.delivery_mode.mode != candidate.delivery_mode.mode) {
        return Err(Refused::DeliveryModeConflict);
    }
    let place = &candidate.place;
    // Legacy connections share a place: they represent no device.
    let same_device = |live: &&Live| !place.device_id.is_empty() && live.place.device_id == place.device_id;
    for live in live.iter().filter(same_device) {
        if live.place == *place && !place.slot_id.is_empty() {
            return Err(Refused::SlotConflict);
        }
        // A device without slots has one connection; it cannot have slots beside it either.
        if live.place.slot_id.is_empty() || place.slot_id.is_empty() {
            return Err(Refused::DeviceSingletonConflict);
        }
    }
    if live.len() >= CONNECTIONS_PER_AID_MAX { Err(Refused::TooMany) } else { Ok(()) }
}

/// The first message of a connection, sent by the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Challenge {
    pub nonce: String,
    pub server: String,
    pub protocol: Versions,
    pub auth_methods: Vec<String>,
    /// Milliseconds.
    pub server_time: i64,
}

pub const CHALLENGE: &str = "challenge";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectResult {
    /// `ok`.
    pub status: String,
    pub protocol: String,
    /// Milliseconds.
    pub server_time: i64,
    pub authenticated: bool,
    pub identity: ConnectedIdentity,
    pub connection: ConnectedAs,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectedIdentity {
    #[schema(value_type = String)]
    pub aid: Aid,
    pub role: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectedAs {
    pub id: String,
    pub device_id: String,
    pub slot_id: String,
}

/// Sent before the gateway closes a connection, with the same code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Disconnect {
    pub code: u16,
    pub reason: String,
}

pub const DISCONNECT_EVENT: &str = "event/gateway.disconnect";

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;

    /// As the published client introduces itself.
    fn params() -> Value {
        json!({
            "nonce": "n", "auth": {"method": "kite_token", "token": "t"}, "protocol": {"min": "1.0", "max": "1.0"},
            "device": {"id": "dev-1", "type": "sdk"}, "client": {"slot_id": ""},
            "delivery_mode": {"mode": "fanout", "routing": "", "affinity_ttl_ms": 0},
            "capabilities": {"e2ee": true, "group_e2ee": true},
        })
    }

    fn check(change: impl FnOnce(&mut Value)) -> Result<Live, Refused> {
        let mut params = params();
        change(&mut params);
        from_value::<ConnectParams>(params).unwrap().check()
    }

    fn live(device_id: &str, slot_id: &str, mode: Mode) -> Live {
        let place = DeviceSlot { device_id: device_id.into(), slot_id: slot_id.into() };
        Live { place, delivery_mode: DeliveryMode { mode, ..DeliveryMode::default() } }
    }

    #[test]
    fn a_connection_names_its_identity_and_its_device() {
        assert_eq!(check(|_| ()), Ok(live("dev-1", "", Mode::Fanout)));
        let legacy: ConnectParams = from_value(json!({"nonce": "n", "auth": params()["auth"]})).unwrap();
        assert_eq!(legacy.check(), Ok(live("", "", Mode::Fanout)));
        assert_eq!(check(|params| params["device"]["id"] = json!("x".repeat(128))).map(|_| ()), Ok(()));
        let queue = json!({"mode": "queue", "routing": "sender_affinity", "affinity_ttl_ms": 1_000});
        assert_eq!(
            check(|params| params["delivery_mode"] = queue).unwrap().delivery_mode.routing,
            Routing::SenderAffinity
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_code() {
        let code = |change: fn(&mut Value)| check(change).unwrap_err().code();
        assert_eq!(code(|params| params["device"]["id"] = json!("x".repeat(129))), 4000);
        assert_eq!(code(|params| params["device"]["id"] = json!("a/b")), 4000);
        assert_eq!(code(|params| params["auth"]["token"] = json!("")), 4000);
        assert_eq!(code(|params| params["delivery_mode"]["routing"] = json!("round_robin")), 4000);
        assert_eq!(code(|params| params["delivery_mode"]["affinity_ttl_ms"] = json!(-1)), 4000);
        for range in [("1.1", "2.0"), ("0.1", "0.9"), ("x", "2.0"), ("", "")] {
            let versions = Versions { min: range.0.into(), max: range.1.into() };
            let refused = check(|params| params["protocol"] = json!(versions)).unwrap_err();
            assert_eq!(refused.code(), -32000);
            assert_eq!(refused.failure(&versions).details.unwrap()["client_range"]["min"], range.0);
        }
        assert!(Versions { min: "0.9".into(), max: "1.10".into() }.include_ours());
        let slot = |params: &mut Value| {
            params["device"]["id"] = json!("");
            params["client"]["slot_id"] = json!("a");
        };
        let refused = check(slot).unwrap_err();
        assert_eq!(refused.failure(&Versions::default()).message, "slot_requires_device_id");
    }

    #[test]
    fn connections_of_an_agent_clash_in_four_ways() {
        use Mode::{Fanout, Queue};
        let admit = |candidate: Live, beside: &[Live]| super::admit(&candidate, beside);
        let (whole, slot) = (live("d", "", Fanout), live("d", "a", Fanout));
        assert_eq!(admit(whole.clone(), std::slice::from_ref(&whole)), Err(Refused::DeviceSingletonConflict));
        assert_eq!(admit(slot.clone(), std::slice::from_ref(&slot)), Err(Refused::SlotConflict));
        assert_eq!(admit(slot.clone(), std::slice::from_ref(&whole)), Err(Refused::DeviceSingletonConflict));
        assert_eq!(admit(whole.clone(), std::slice::from_ref(&slot)), Err(Refused::DeviceSingletonConflict));
        assert_eq!(admit(live("e", "", Queue), std::slice::from_ref(&whole)), Err(Refused::DeliveryModeConflict));
        // Another device, another slot, and legacy connections beside each other.
        assert_eq!(admit(live("e", "", Fanout), std::slice::from_ref(&whole)), Ok(()));
        assert_eq!(admit(live("d", "b", Fanout), std::slice::from_ref(&slot)), Ok(()));
        assert_eq!(admit(live("", "", Fanout), &[live("", "", Fanout), whole]), Ok(()));
        let many: Vec<Live> = (0..CONNECTIONS_PER_AID_MAX).map(|n| live(&n.to_string(), "", Fanout)).collect();
        assert_eq!(admit(live("x", "", Fanout), &many), Err(Refused::TooMany));
        assert_eq!(admit(live("x", "", Fanout), &many[1..]), Ok(()));
    }

    #[test]
    fn a_call_speaks_of_its_own_place_only() {
        let place = DeviceSlot { device_id: "d".into(), slot_id: "a".into() };
        for (device, slot) in [(None, None), (Some("d"), None), (None, Some("a")), (Some("d"), Some("a"))] {
            assert_eq!(place.of_call(device, slot).unwrap(), &place);
        }
        for (device, slot) in [(Some("e"), None), (None, Some("")), (Some("d"), Some("b")), (Some(""), None)] {
            assert_eq!(place.of_call(device, slot).unwrap_err().rule_name(), Some("context-mismatch"));
        }
    }
}
