//! The client's clock and time zone, as it sends them with a run.

use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::refused::InputRefused;
use crate::{Rule, Timestamp};

#[derive(Clone, Debug, PartialEq)]
pub struct ClientTime {
    /// As the time zone database writes it.
    pub device_timezone: String,
    pub client_now_iso: String,
    pub client_epoch_ms: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClientTime {
    #[serde(default)]
    device_timezone: Value,
    #[serde(default)]
    client_now_iso: Value,
    #[serde(default)]
    client_epoch_ms: Value,
}

impl ClientTime {
    pub(super) fn read(raw: RawClientTime) -> Result<Self, InputRefused> {
        let zone = raw.device_timezone.as_str().and_then(|name| TimeZone::get(name).ok());
        let device_timezone = zone.and_then(|zone| zone.iana_name().map(str::to_owned));
        let device_timezone = device_timezone
            .ok_or_else(|| InputRefused::new(Rule::AgentRunInputInvalid, "invalid client_time.device_timezone"))?;
        let client_now_iso = raw.client_now_iso.as_str().filter(|text| is_rfc3339(text)).map(str::to_owned);
        let client_now_iso = client_now_iso
            .ok_or_else(|| InputRefused::new(Rule::AgentRunInputInvalid, "invalid client_time.client_now_iso"))?;
        let client_epoch_ms = epoch_ms(&raw.client_epoch_ms)
            .ok_or_else(|| InputRefused::new(Rule::AgentRunInputInvalid, "invalid client_time.client_epoch_ms"))?;
        Ok(Self { device_timezone, client_now_iso, client_epoch_ms })
    }
}

/// RFC 3339 with its offset. The parser behind it takes more of ISO 8601 than that, and checks what is a date.
fn is_rfc3339(text: &str) -> bool {
    let shape = |text: &str| -> Option<()> {
        let (date_time, rest) = text.as_bytes().split_at_checked(19)?;
        let fits = date_time.iter().zip(b"dddd-dd-ddTdd:dd:dd").all(|(byte, shape)| match shape {
            b'd' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b't' | b' '),
            shape => byte == shape,
        });
        let rest = match rest.split_first() {
            Some((b'.', rest)) => {
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                (digits > 0).then_some(&rest[digits..])?
            }
            _ => rest,
        };
        let offset = match rest {
            [b'Z' | b'z'] => true,
            [b'+' | b'-', h1, h2, b':', m1, m2] => [h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit()),
            _ => false,
        };
        (fits && offset).then_some(())
    };
    shape(text).is_some() && text.parse::<Timestamp>().is_ok()
}

fn epoch_ms(value: &Value) -> Option<i64> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    let ms = value.as_i64().or_else(|| value.as_f64().and_then(whole))?;
    Timestamp::from_millisecond(ms).ok().map(|_| ms)
}
