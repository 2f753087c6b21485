//! Requests made at random from the document: valid by its schemas, and the same for the same seed.

use std::collections::BTreeMap;

use proptest::{strategy::Strategy, strategy::ValueTree, string::string_regex, test_runner::TestRunner};
use serde_json::{Map, Value, json};

pub(crate) struct Generator<'a> {
    document: &'a Value,
    state: u64,
    runner: TestRunner,
}

/// Query, headers and body.
pub(crate) type Parts = (String, Vec<(String, String)>, Option<Value>);

impl<'a> Generator<'a> {
    pub(crate) fn new(document: &'a Value, seed: u64) -> Self {
        Self { document, state: seed, runner: TestRunner::deterministic() }
    }

    /// A number below `end`, by splitmix64.
    fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A request for the operation. `None` if it has nothing to fill, or answers with a stream without an end.
    pub(crate) fn request(&mut self, operation: &Value) -> Option<Parts> {
        let has_stream = operation["responses"]["200"]["content"]["text/event-stream"].is_object();
        let has_json = operation["responses"]["200"]["content"]["application/json"].is_object();
        let json = &operation["requestBody"]["content"]["application/json"]["schema"];
        if operation["requestBody"].is_object() && !json.is_object() || has_stream && !has_json && !json.is_object() {
            return None;
        }
        let (mut query, mut headers) = (vec![], vec![]);
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str()?;
            // A wait is waited for, and a stream's position is for streams.
            let is_left_out = ["waitMs", "Last-Event-ID", "If-Match"].contains(&name);
            let is_required = parameter["required"] == true;
            if parameter["in"] == "path" || is_required || is_left_out || self.one_in(2) {
                continue;
            }
            let value = match self.value(&parameter["schema"]) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            match parameter["in"].as_str()? {
                "header" => headers.push((name.to_owned(), value)),
                _ => query.push(format!(
                    "{name}={}",
                    percent_encoding::utf8_percent_encode(&value, percent_encoding::NON_ALPHANUMERIC)
                )),
            }
        }
        if json.is_null() && query.is_empty() && headers.is_empty() {
            return None;
        }
        let is_optional = operation["requestBody"]["required"] != true;
        let body = if json.is_null() || is_optional && self.one_in(4) { None } else { Some(self.value(json)) };
        // The key is given once.
        if body.as_ref().is_some_and(|body| body.get("idempotencyKey").is_some()) {
            headers.retain(|(name, _)| name != "Idempotency-Key");
        }
        Some((query.join("&"), headers, body))
    }

    /// The schema with its references and alternatives that are no null put in.
    pub(crate) fn resolved(&self, schema: &Value) -> Value {
        let mut schema = schema.clone();
        while let Some(name) = schema["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap().to_owned();
            let mut beside = schema.take();
            beside
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !["$ref", "description", "default"].contains(&key.as_str()));
            schema = self.document["components"]["schemas"][name].clone();
            merge(&mut schema, beside);
        }
        let some = schema["oneOf"].as_array().and_then(|some| some.iter().find(|one| one["type"] != "null")).cloned();
        match some {
            Some(one) if schema["oneOf"].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == "null")) => {
                self.resolved(&one)
            }
            _ => match schema["allOf"].as_array().cloned() {
                Some(parts) => parts.iter().fold(json!({}), |mut whole, part| {
                    merge(&mut whole, self.resolved(part));
                    whole
                }),
                None => schema,
            },
        }
    }

    pub(crate) fn value(&mut self, schema: &Value) -> Value {
        let schema = {
            let mut schema = schema.clone();
            if let Some(any) = schema["oneOf"].as_array().cloned() {
                let chosen = self.below(any.len() as u64) as usize;
                schema = any[chosen].clone();
            }
            let mut schema = self.resolved(&schema);
            if let Some(any) = schema["oneOf"].as_array().cloned() {
                let chosen = self.below(any.len() as u64) as usize;
                schema = self.resolved(&any[chosen]);
            }
            if let Some(mut any) = schema["anyOf"].as_array().cloned() {
                // An alternative for another word than the one that is asked for is none.
                let word = |schema: &Value| schema["properties"]["type"]["const"].clone();
                let wanted = word(&schema);
                any.retain(|one| wanted.is_null() || word(one).is_null() || word(one) == wanted);
                let chosen = self.below(any.len() as u64) as usize;
                merge(&mut schema, self.resolved(&any[chosen]));
            }
            schema
        };
        if let Some(word) = schema.get("const") {
            return word.clone();
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[self.below(words.len() as u64) as usize].clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds[self.below(kinds.len() as u64) as usize].as_str().unwrap().to_owned(),
            Value::String(kind) => kind.clone(),
            _ => return json!({"any": self.below(100)}),
        };
        match kind.as_str() {
            "null" => Value::Null,
            "boolean" => json!(self.one_in(2)),
            "integer" => self.integer(&schema),
            "number" => json!(self.below(1_000) as f64 + 0.5),
            "string" => json!(self.text(&schema)),
            "array" => self.array(&schema),
            _ => self.object(&schema),
        }
    }

    fn integer(&mut self, schema: &Value) -> Value {
        let (least, most) = (schema["minimum"].as_i64().unwrap_or(-5), schema["maximum"].as_i64().unwrap_or(1_000));
        match self.below(4) {
            0 => json!(least),
            1 => json!(most),
            _ => json!(least.saturating_add(self.below((most.saturating_sub(least)).max(1) as u64) as i64)),
        }
    }

    fn text(&mut self, schema: &Value) -> String {
        let (least, most) = (schema["minLength"].as_u64().unwrap_or(0), schema["maxLength"].as_u64().unwrap_or(50));
        match schema["format"].as_str() {
            Some("date-time") => return "2026-01-02T03:04:05Z".into(),
            Some("date") => return format!("2026-0{}-1{}", 1 + self.below(9), self.below(10)),
            Some("uuid") => return format!("00000000-0000-4000-8000-{:012x}", self.below(1 << 40)),
            Some("timezone") => return ["UTC", "Europe/Berlin", "Asia/Shanghai"][self.below(3) as usize].into(),
            Some("toml") => return format!("model = \"m{}\"", self.below(9)),
            Some("uri") => return format!("https://hooks.example/{}", self.below(1 << 30)),
            Some("aid") => return format!("agent-{}.localhost.test", self.below(1 << 30)),
            Some("visible-text") => return format!("Agent {}", self.below(1 << 30)),
            Some("cursor") => return format!("{:x}", self.below(1 << 30)),
            Some("p256-spki-base64") => {
                return "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==".into();
            }
            _ => {}
        }
        if let Some(pattern) = schema["pattern"].as_str() {
            let bare = pattern.trim_start_matches('^').trim_end_matches('$');
            let made = string_regex(bare).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            let mut text: String =
                made.new_tree(&mut self.runner).unwrap().current().chars().take(most as usize).collect();
            while (text.chars().count() as u64) < least {
                text.push('a');
            }
            return text;
        }
        let length = (least + self.below(30)).min(most);
        (0..length).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }

    fn array(&mut self, schema: &Value) -> Value {
        let (least, most) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64().unwrap_or(3));
        let count = (least + self.below(3)).min(most);
        let mut items: Vec<Value> = vec![];
        for _ in 0..count {
            let item = self.value(&schema["items"]);
            if schema["uniqueItems"] != true || !items.contains(&item) {
                items.push(item);
            }
        }
        items.into()
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required: Vec<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields = Map::new();
        let properties: BTreeMap<_, _> = schema["properties"].as_object().into_iter().flatten().collect();
        let must_have_one = schema["minProperties"].as_u64().unwrap_or(0) > 0;
        for (name, inner) in &properties {
            let is_forced = must_have_one && fields.is_empty() && Some(name) == properties.keys().last();
            if !required.contains(&name.as_str()) && !is_forced && self.one_in(2) {
                continue;
            }
            let inner = self.of_example(schema, name, inner);
            fields.insert((*name).clone(), inner);
        }
        for (name, needed) in schema["dependentRequired"].as_object().into_iter().flatten() {
            let is_missing =
                needed.as_array().unwrap().iter().any(|other| !fields.contains_key(other.as_str().unwrap()));
            if is_missing {
                fields.remove(name);
            }
        }
        Value::Object(fields)
    }

    /// What no schema describes is taken from the example.
    fn of_example(&mut self, schema: &Value, name: &str, inner: &Value) -> Value {
        let resolved = self.resolved(inner);
        let is_free = |schema: &Value| schema["type"].to_string().contains("object") && schema["properties"].is_null();
        let example = &schema["example"][name];
        if !example.is_null() && (is_free(&resolved) || is_free(&resolved["items"])) {
            return example.clone();
        }
        self.value(inner)
    }
}

/// Merges schemas: what is added wins, and what either needs is needed.
fn merge(into: &mut Value, added: Value) {
    match (into, added) {
        (Value::Object(into), Value::Object(added)) => {
            for (key, value) in added {
                match (key.as_str(), into.get_mut(&key), value) {
                    ("required", Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
                    (_, _, value) => merge(into.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (into, added) => *into = added,
    }
}
