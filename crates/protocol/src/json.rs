//! JSON that travels as text: parsed once to validate, never re-serialised on the way out.

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{Failure, Rule, sha256::sha256};

/// A JSON value kept as the text it arrived in.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct RawJson(Box<RawValue>);

impl<'de> Deserialize<'de> for RawJson {
    /// Raw text is only skimmed by the parser. Input is parsed fully once, so that nothing is stored that cannot be
    /// read back: numbers out of range, half characters, endless nesting.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(input)?;
        if !is_surely_sound(raw.get()) {
            serde_json::from_str::<Sound>(raw.get()).map_err(serde::de::Error::custom)?;
        }
        Ok(Self(raw))
    }
}

/// Nesting and length of a number up to which every JSON text can be read back.
const SURE_DEPTH_MAX: i64 = 64;
const SURE_NUMBER_BYTES_MAX: usize = 24;

/// Whether text that was skimmed cannot hold anything that only parsing finds: it has no escape, no exponent, no long number
/// and no deep nesting. Strings are passed over, so this costs much less than parsing.
fn is_surely_sound(text: &str) -> bool {
    let bytes = text.as_bytes();
    if memchr::memchr(b'\\', bytes).is_some() {
        return false;
    }
    let (mut at, mut depth) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            // No quote is escaped.
            b'"' => match memchr::memchr(b'"', &bytes[at..]) {
                Some(string_bytes) => at += string_bytes + 1,
                None => return false,
            },
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'0'..=b'9' => {
                let number_bytes = bytes[at..].iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'.')).count();
                at += number_bytes;
                if number_bytes > SURE_NUMBER_BYTES_MAX || matches!(bytes.get(at), Some(b'e' | b'E')) {
                    return false;
                }
            }
            _ => {}
        }
        if !(0..=SURE_DEPTH_MAX).contains(&depth) {
            return false;
        }
    }
    true
}

/// Reads any JSON value, and keeps nothing of it.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(Sound)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = Sound;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_str<E>(self, _: &str) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_unit<E>(self) -> Result<Sound, E> {
        Ok(Sound)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Sound, A::Error> {
        while items.next_element::<Sound>()?.is_some() {}
        Ok(Sound)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Sound, A::Error> {
        while fields.next_entry::<Sound, Sound>()?.is_some() {}
        Ok(Sound)
    }
}

impl RawJson {
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self)
    }

    #[expect(clippy::expect_used, reason = "our own types serialise")]
    pub fn of<T: Serialize>(value: &T) -> Self {
        Self(serde_json::value::to_raw_value(value).expect("our own types serialise"))
    }

    pub fn null() -> Self {
        Self::of(&())
    }

    /// `{}`.
    pub fn empty_object() -> Self {
        Self::of(&serde_json::Map::new())
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// What counts against a limit: the bytes of the text with every escape as the character it encodes, so that a
    /// limit does not depend on how the caller's library writes JSON.
    pub fn size(&self) -> usize {
        let mut saved = 0;
        let mut rest = self.as_str();
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            let escape = &rest[at + 1..];
            let (taken, stands_for) = match escape.as_bytes().first() {
                Some(b'u') => (6, unit_bytes(escape.get(1..5).unwrap_or_default())),
                _ => (2, 1),
            };
            saved += taken - stands_for;
            rest = &rest[at + taken..];
        }
        self.as_str().len() - saved
    }

    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Reads the text into a type. `None`: it has another shape.
    pub fn view<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str(self.as_str()).ok()
    }

    #[expect(clippy::expect_used, reason = "checked when it was made")]
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(self.as_str()).expect("checked when it was made")
    }
}

/// How many bytes of UTF-8 a `\u` escape encodes. Two surrogates make one character of four.
fn unit_bytes(hex: &str) -> usize {
    match u32::from_str_radix(hex, 16).unwrap_or_default() {
        0..0x80 => 1,
        0x80..0x800 | 0xD800..0xE000 => 2,
        _ => 3,
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// Reads an object of a caller's, and reports where it does not fit: `executionPolicy.timeoutMs: a string, expected an
/// integer`. The value itself is never quoted: it may be a secret in the wrong place.
pub fn read_shape<T: DeserializeOwned>(rule: Rule, name: &str, text: &str) -> Result<T, Failure> {
    match serde_json::from_str(text) {
        Ok(value) if !text.trim_start().starts_with('[') => Ok(value),
        read => Err(misshapen(rule, name, text, read.map(|_: T| ()), misfit_path::<T>)),
    }
}

/// Why a text is not of its shape. Not generic: it would be compiled for every body.
fn misshapen(
    rule: Rule,
    name: &str,
    text: &str,
    read: Result<(), serde_json::Error>,
    misfit_path: fn(&str) -> String,
) -> Failure {
    let error = match read {
        // An array would be taken for an object's fields in their order.
        Ok(()) => {
            return Failure::invalid(rule, format!("{name}: an array, expected an object")).detail("field", name);
        }
        Err(error) if !error.is_data() => return Failure::invalid(Rule::JsonMalformed, format!("{name}: {error}")),
        Err(error) => error,
    };
    let path = misfit_path(text);
    let field = match path.as_str() {
        "." => name.to_owned(),
        path if name == BODY => path.to_owned(),
        path => format!("{name}.{path}"),
    };
    Failure::invalid(rule, format!("{field}: {}", misfit(&error))).detail("field", field)
}

/// The path of what does not fit. Only a text that did not fit is read again, with an eye on the path.
fn misfit_path<T: DeserializeOwned>(text: &str) -> String {
    serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_str(text))
        .map_or_else(|error| error.path().to_string(), |_| ".".into())
}

/// The name of a body; its fields are known without it.
pub const BODY: &str = "the body";

/// What does not fit, in words of JSON.
fn misfit(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The path names the place; the position would count from somewhere inside.
    let text = text.split(" at line ").next().unwrap_or_default();
    let (found, expected) = text.rsplit_once(", expected ").unwrap_or((text, ""));
    let found = match found.split_once(": ") {
        Some(("invalid type" | "invalid value", found)) => in_json(found.split(['"', '`']).next().unwrap_or_default()),
        _ if found.starts_with("invalid length") && in_json(expected) == "an object" => "an array",
        _ if found.starts_with("unknown variant") => "a word that is not known here",
        _ => return text.to_owned(),
    };
    match in_json(expected) {
        // The kind fits, so it is the number that does not.
        "an integer" if found == "an integer" && expected.starts_with('u') => {
            "an integer out of range, expected 0 or more".to_owned()
        }
        "an integer" if found == "an integer" => "an integer out of range".to_owned(),
        expected => format!("{found}, expected {expected}"),
    }
}

/// What a type of ours is called in JSON.
fn in_json(words: &str) -> &str {
    match words.strip_prefix("a ").unwrap_or(words).split(' ').next().unwrap_or_default() {
        "struct" | "map" => "an object",
        "sequence" | "tuple" => "an array",
        "i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64" | "usize" | "integer" => "an integer",
        "f32" | "f64" | "floating" => "a number",
        "string" => "a string",
        "boolean" => "a boolean",
        _ => words.trim_end(),
    }
}

/// The text of a value whose type serialises: a type of ours, or plain JSON.
#[expect(clippy::expect_used, reason = "our own types have string keys and no serializer that fails")]
pub fn text_of(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("our own types serialise")
}

/// As [`text_of`], as a JSON value.
#[expect(clippy::expect_used, reason = "our own types have string keys and no serializer that fails")]
pub fn value_of(value: &(impl Serialize + ?Sized)) -> serde_json::Value {
    serde_json::to_value(value).expect("our own types serialise")
}

/// SHA-256 of the RFC 8785 canonical form, in hex: equal for bodies that mean the same.
#[expect(clippy::expect_used, reason = "a JSON value has a canonical form")]
pub fn canonical_hash(value: &serde_json::Value) -> String {
    if is_written_canonically(value) {
        return hex(&sha256(text_of(value).as_bytes()));
    }
    let canonical = serde_json_canonicalizer::to_vec(value).expect("a JSON value has a canonical form");
    hex(&sha256(&canonical))
}

/// Integers up to this are the same as numbers of JavaScript.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// Whether the value's text is canonical as it is: numbers are integers of JavaScript, and keys are in order. By UTF-16, which
/// the canonical form sorts by, ASCII has the same order as by bytes. Strings are escaped alike in both.
fn is_written_canonically(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => number.as_i64().is_some_and(|n| n.unsigned_abs() <= SAFE_INTEGER_MAX),
        serde_json::Value::Array(items) => items.iter().all(is_written_canonically),
        serde_json::Value::Object(fields) => {
            fields.keys().all(|key| key.is_ascii())
                && fields.keys().is_sorted()
                && fields.values().all(is_written_canonically)
        }
        _ => true,
    }
}

pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// What [`hex`] wrote, in either case of its letters. `None`: it is nothing that it could have written.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(&pair[0])? * 16 + digit(pair.get(1)?)?) as u8);
    text.as_bytes().chunks(2).map(byte).collect()
}

/// For fields where "absent" and "null" differ: `#[serde(default, deserialize_with = "present")]`.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(input: D) -> Result<Option<T>, D::Error> {
    T::deserialize(input).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_is_read_as_it_is_written_and_nothing_else_is() {
        assert_eq!(unhex(&hex(&[0, 15, 255])), Some(vec![0, 15, 255]));
        assert_eq!((unhex("FF"), unhex("")), (Some(vec![255]), Some(vec![])));
        for wrong in ["f", "fff", "+f", "0x", " f", "é"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_size_does_not_depend_on_how_it_was_written() {
        for text in ["", "中文", "a\"\\/\n\t\u{1}é𝄞", "\\u4e2d"] {
            let plain = RawJson::of(&text);
            let mut escaped = String::new();
            text.encode_utf16().for_each(|unit| escaped += &format!("\\u{unit:04x}"));
            let escaped = RawJson::parse(format!("\"{escaped}\"")).unwrap();
            assert_eq!((plain.size(), escaped.size()), (text.len() + 2, text.len() + 2), "{text:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_place_and_in_words_of_json() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[expect(dead_code, reason = "only its shape counts")]
        struct Body {
            some_items: Vec<Item>,
        }
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only its shape counts")]
        struct Item {
            count: i64,
            #[serde(default)]
            age: u32,
            kind: crate::kernel::commands::CommandType,
        }
        let message_of = |text: &str| read_shape::<Body>(Rule::BodyShape, BODY, text).unwrap_err().message;
        for (text, message) in [
            ("7", "the body: an integer, expected an object"),
            ("[[]]", "the body: an array, expected an object"),
            ("{}", "the body: missing field `someItems`"),
            (r#"{"someItems": "secret"}"#, "someItems: a string, expected an array"),
            (r#"{"someItems": [{"count": "secret"}]}"#, "someItems[0].count: a string, expected an integer"),
            (r#"{"someItems": [[]]}"#, "someItems[0]: an array, expected an object"),
            (r#"{"someItems": [{"age": -1}]}"#, "someItems[0].age: an integer out of range, expected 0 or more"),
            (r#"{"someItems": [{"count": 9223372036854775808}]}"#, "someItems[0].count: an integer out of range"),
            (r#"{"someItems": [{"count": 1.5}]}"#, "someItems[0].count: a number, expected an integer"),
            (
                r#"{"someItems": [{"count": 1, "kind": "secret"}]}"#,
                "someItems[0].kind: a word that is not known here, expected one of `turn`, `steer`, `interrupt`",
            ),
        ] {
            assert_eq!(message_of(text), message);
        }
        let nested = read_shape::<Body>(Rule::BodyShape, "payload", r#"{"someItems": null}"#).unwrap_err();
        assert_eq!(nested.details.unwrap()["field"], "payload.someItems");
        assert_eq!(read_shape::<Body>(Rule::BodyShape, BODY, "{} {}").unwrap_err().rule_name(), Some("body-shape"));
        assert_eq!(read_shape::<Body>(Rule::BodyShape, BODY, "{").unwrap_err().rule_name(), Some("json-malformed"));
    }

    #[test]
    fn a_hash_is_that_of_the_canonical_form_however_it_is_computed() {
        for text in [
            "null",
            r#"{"b":[1,-7,9007199254740991],"a":{"z":true,"Z":"é\u0001\"\\\n\u007f/"},"":""}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":9223372036854775807,"b":18446744073709551615}"#,
            r#"{"a":[1.0,-0.0,1e21,0.1]}"#,
            "{\"\u{fb33}\":1,\"\u{1f600}\":2,\"é\":3}",
        ] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            let canonical = serde_json_canonicalizer::to_vec(&value).unwrap();
            assert_eq!(canonical_hash(&value), hex(&sha256(&canonical)), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_back_is_not_taken() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let long = format!("[1{}]", "0".repeat(400));
        for bad in ["1e999", r#""\ud800""#, r#"{"a":[1e999]}"#, r#"{"a":"b","c":-1.5E999}"#, &long, &deep] {
            assert!(serde_json::from_str::<RawJson>(bad).is_err(), "{bad}");
        }
        for good in
            ["null", r#"{"a": [1, -2.5, true, "\u0000é"]}"#, "9223372036854775807", r#"{"a":["1e999",{}],"b":1e9}"#]
        {
            assert_eq!(serde_json::from_str::<RawJson>(good).unwrap().as_str(), good);
        }
    }
}
