//! JSON that is going to be hashed: read without the liberties of an ordinary parser, written as RFC 8785 specifies.
//!
//! An ordinary parser keeps the last of two equal keys and rounds what a double cannot hold, so two readers could see two
//! documents behind one hash. Both are refused here.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use crate::{Failure, Rule, json::hex, sha256::sha256};

/// The largest whole number that every JSON reader keeps: 2^53 - 1.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// The canonical text of a JSON value, and the hash of that.
#[derive(Clone, Debug, PartialEq)]
pub struct Canonical {
    pub text: String,
    /// SHA-256 of the text, in lower-case hex.
    pub hash: String,
}

impl Canonical {
    /// Reads what a caller sent: the value, and its canonical form. `name` is what it is called in a failure.
    pub fn read(name: &str, text: &str) -> Result<(Value, Self), Failure> {
        let Strict(value) = serde_json::from_str(text).map_err(|error: serde_json::Error| match error.is_data() {
            true => Failure::invalid(Rule::ManifestInvalid, format!("{name}: {error}")),
            false => Failure::invalid(Rule::ManifestInvalid, format!("{name} is not valid JSON: {error}")),
        })?;
        let canonical = Self::of(&value);
        Ok((value, canonical))
    }

    /// The canonical form of a value that has been read strictly before.
    #[expect(clippy::expect_used, reason = "a JSON value has a canonical form")]
    pub fn of(value: &Value) -> Self {
        let text = serde_json_canonicalizer::to_string(value).expect("a JSON value has a canonical form");
        let hash = hex(&sha256(text.as_bytes()));
        Self { text, hash }
    }
}

/// A value without equal keys and without numbers that a reader may round. A number is written in one way, so that equal
/// values mean the same and others do not.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

fn unsafe_integer<E: Error>() -> E {
    E::custom(format_args!("a whole number beyond ±{SAFE_INTEGER_MAX} is not the same number for every reader"))
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        if number.unsigned_abs() > SAFE_INTEGER_MAX { Err(unsafe_integer()) } else { Ok(number.into()) }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        if number > SAFE_INTEGER_MAX { Err(unsafe_integer()) } else { Ok(number.into()) }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        if number.fract() == 0.0 && number.abs() > SAFE_INTEGER_MAX as f64 {
            return Err(unsafe_integer());
        }
        if number.fract() == 0.0 {
            return Ok((number as i64).into());
        }
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = vec![];
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Strict(value))) = fields.next_entry::<String, Strict>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} occurs twice in one object")));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
