//! Canonical JSON as the mesh signs it: keys sorted by code point at every depth, no white space, only necessary escapes,
//! numbers as Python writes them. It is not RFC 8785, which sorts keys and writes numbers differently.

use serde_json::{Map, Value};

/// The bytes that are signed. The parser has already rounded whole numbers beyond 64 bits, so a signature over such a
/// number does not verify.
pub fn json(value: &Value) -> Vec<u8> {
    let mut text = String::new();
    write(value, &mut text);
    text.into_bytes()
}

/// The bytes that are signed of an object without some of its fields.
pub fn json_without(object: &Map<String, Value>, left_out: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut text = String::new();
    write_object(object.iter().filter(|(key, _)| !left_out(key)), &mut text);
    text.into_bytes()
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(object) => write_object(object.iter(), text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                write(item, text);
            }
            text.push(']');
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => text.push_str(&python_float(float)),
            None => text.push_str(&number.to_string()),
        },
        plain => text.push_str(&plain.to_string()),
    }
}

fn write_object<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>, text: &mut String) {
    let mut fields: Vec<_> = fields.collect();
    fields.sort_by_key(|(key, _)| *key);
    text.push('{');
    for (index, (key, value)) in fields.into_iter().enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        text.push_str(&Value::from(key.as_str()).to_string());
        text.push(':');
        write(value, text);
    }
    text.push('}');
}

/// Writes a float like Python. Rust prints the same digits and switches to exponents at the same sizes, but Python's exponent
/// has a sign and two digits.
fn python_float(float: f64) -> String {
    let text = format!("{float:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The output of Python's `json.dumps(sort_keys=True, separators=(",", ":"), ensure_ascii=False)` for the same value.
    #[test]
    fn output_is_the_same_as_pythons() {
        let value = json!({
            "z": [1, -2, 2.5, 1.0, 1e16, 1.5e-7, 1e15, 0.0001, 1e-5, 123456789012345678u64],
            "a": {"中": "é\u{7f}", "b": "\u{1}\"\\\n\t/", "B": null, "𝄞": true, "\u{ffff}": false},
        });
        let python = "{\"a\":{\"B\":null,\"b\":\"\\u0001\\\"\\\\\\n\\t/\",\"中\":\"é\u{7f}\",\"\u{ffff}\":false,\"𝄞\":true},\
            \"z\":[1,-2,2.5,1.0,1e+16,1.5e-07,1000000000000000.0,0.0001,1e-05,123456789012345678]}";
        assert_eq!(String::from_utf8(json(&value)).unwrap(), python);
    }
}
