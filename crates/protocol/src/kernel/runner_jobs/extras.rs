//! What an order adds for its one job: the image of the pod, and short-lived variables of the agent's tools. Both are for runners in
//! Kubernetes; elsewhere they are refused, not passed over.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::{CreateRunnerJob, Launcher, variable_names::check_name};
use crate::{Failure, RawJson, Rule, json::hex, problems::Problems};

/// Bytes of an image reference.
pub const IMAGE_BYTES_MAX: usize = 512;
pub const TRANSIENT_VARIABLES_MAX: usize = 32;
/// Bytes of a variable's name, and of its value.
pub const TRANSIENT_NAME_BYTES_MAX: usize = 128;
pub const TRANSIENT_VALUE_BYTES_MAX: usize = 16 * 1024;
/// Bytes of all values of a job.
pub const TRANSIENT_BYTES_MAX: usize = 64 * 1024;
/// Hexadecimal digits of a value's hash that are shown.
const HASH_DIGITS: usize = 16;
const DIGEST: &str = "@sha256:";
const DIGEST_DIGITS: usize = 64;

/// The image of a runner's pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendImageRef {
    /// The reference, pinned by its digest: `registry.example/name@sha256:…`.
    pub image: String,
}

impl BackendImageRef {
    /// Rejects a reference that is not pinned by a digest: a tag can be moved to another image.
    pub fn check(&self) -> Result<(), Failure> {
        let name = self.image.split_once(DIGEST).map_or("", |(name, _)| name);
        let fits = self.image.len() <= IMAGE_BYTES_MAX && self.repository().is_some() && is_image_name(name);
        if fits {
            return Ok(());
        }
        let message = "backendImageRef.image must be pinned by its digest: NAME@sha256: and 64 hexadecimal digits";
        Err(Failure::invalid(Rule::BackendImageShape, message))
    }

    /// The name of the image without its digest and a tag beside it. `None` if it is not pinned.
    pub fn repository(&self) -> Option<&str> {
        let (name, digits) = self.image.split_once(DIGEST)?;
        let is_digest =
            digits.len() == DIGEST_DIGITS && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_digest.then(|| without_tag(name)).filter(|name| !name.is_empty())
    }
}

/// The name of an image without its tag or digest. A colon before a slash begins a port.
pub fn image_repository(image: &str) -> &str {
    without_tag(image.split_once('@').map_or(image, |(name, _)| name))
}

/// Whether a text can name an image by a tag or without one.
pub fn is_image_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    text.len() <= IMAGE_BYTES_MAX && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_plain)
}

fn without_tag(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

/// A short-lived variable of a job's tools, as it is shown: never its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransientVariable {
    pub name: String,
    /// The beginning of a keyed hash of its value, which only the server can compute: enough to distinguish two values of the same
    /// variable and run.
    pub value_hash: String,
}

/// The extras of a job as they are stored. Values are sealed, and only there until the job has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobExtras {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<TransientVariable>,
    /// The variables with their values, sealed by the server, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
}

impl JobExtras {
    pub fn read(raw: &RawJson) -> Self {
        raw.view().unwrap_or_default()
    }

    /// The extras of a job that has ended.
    pub fn without_values(raw: &RawJson) -> RawJson {
        let extras = Self::read(raw);
        match extras.sealed {
            Some(_) => RawJson::of(&Self { sealed: None, ..extras }),
            None => raw.clone(),
        }
    }
}

impl CreateRunnerJob {
    /// Checks the extras of an order for this launcher.
    pub fn check_extras(&self, launcher: Launcher) -> Result<(), Failure> {
        let mut problems = Problems::default();
        if launcher != Launcher::Kubernetes {
            let given = [
                ("backendImageRef", self.backend_image_ref.is_some()),
                ("transientEnv", !self.transient_env.is_empty()),
            ];
            for (field, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                let message =
                    format!("{field} is for runners in Kubernetes; the runner of this job is {:?}", launcher.as_str());
                let failure = Failure::invalid(Rule::JobFieldUnsupported, message).detail("field", field);
                problems.note(Err::<(), _>(failure));
            }
            return problems.check();
        }
        if let Some(image) = &self.backend_image_ref {
            problems.note(image.check());
        }
        if self.standing && !self.transient_env.is_empty() {
            let message =
                "transientEnv is short-lived, and a standing job starts runners later, too; leave one of them out";
            problems.note(Err::<(), _>(Failure::invalid(Rule::TransientEnvShape, message)));
        }
        problems.note(check_variables(&self.transient_env));
        problems.check()
    }

    /// The variables as they are shown. `tag`: a keyed hash of a name and a value. From a plain one, short values could be found by
    /// computing the hashes of all of them.
    pub fn shown_variables(&self, tag: impl Fn(&str, &str) -> Vec<u8>) -> Vec<TransientVariable> {
        let shown = |(name, value): (&String, &SecretString)| {
            let mut value_hash = hex(&tag(name, value.expose_secret()));
            value_hash.truncate(HASH_DIGITS);
            TransientVariable { name: name.clone(), value_hash }
        };
        self.transient_env.iter().map(shown).collect()
    }
}

fn check_variables(variables: &BTreeMap<String, SecretString>) -> Result<(), Failure> {
    let refused = |message: String| Err(Failure::invalid(Rule::TransientEnvShape, message));
    if variables.len() > TRANSIENT_VARIABLES_MAX {
        return refused(format!("transientEnv holds at most {TRANSIENT_VARIABLES_MAX} variables"));
    }
    for (name, value) in variables {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let is_name = (1..=TRANSIENT_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(is_plain)
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name {
            // It is not quoted: it may be a value in the wrong place.
            return refused("a name in transientEnv must have letters, digits and underscores, no digit first".into());
        }
        check_name(name)?;
        let bytes = value.expose_secret().len();
        if bytes > TRANSIENT_VALUE_BYTES_MAX {
            let what = format!("transientEnv.{name}");
            return Err(Failure::too_large(Rule::TransientEnvSize, &what, bytes, TRANSIENT_VALUE_BYTES_MAX));
        }
        if value.expose_secret().contains('\0') {
            return refused(format!("the value of transientEnv.{name} has a NUL character"));
        }
    }
    let bytes: usize = variables.values().map(|value| value.expose_secret().len()).sum();
    if bytes > TRANSIENT_BYTES_MAX {
        return Err(Failure::too_large(Rule::TransientEnvSize, "transientEnv", bytes, TRANSIENT_BYTES_MAX));
    }
    Ok(())
}

/// In clear: the reader is the server that the order is for.
pub(super) fn expose_values<S: Serializer>(
    variables: &BTreeMap<String, SecretString>,
    out: S,
) -> Result<S::Ok, S::Error> {
    out.collect_map(variables.iter().map(|(name, value)| (name, value.expose_secret())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn order(body: serde_json::Value) -> CreateRunnerJob {
        serde_json::from_value(body).unwrap()
    }

    fn broken(body: serde_json::Value) -> String {
        let failure = order(body).check_extras(Launcher::Kubernetes).unwrap_err();
        failure.rule_name().unwrap().to_owned()
    }

    #[test]
    fn an_image_must_be_pinned_by_its_digest() {
        let digest = "0123456789abcdef".repeat(4);
        for pinned in ["registry.example:5000/a/b", "name", "registry.example/name:1.2"] {
            let order = order(json!({"backendImageRef": {"image": format!("{pinned}@sha256:{digest}")}}));
            order.check_extras(Launcher::Kubernetes).unwrap();
        }
        let long = format!("{}@sha256:{digest}", "a".repeat(IMAGE_BYTES_MAX));
        let short = format!("name@sha256:{}", &digest[1..]);
        let upper = format!("name@sha256:{}", digest.to_uppercase());
        let nameless = format!("@sha256:{digest}");
        let spaced = format!("a b@sha256:{digest}");
        for image in ["name", "name:latest", "name:1.2", "name@sha256:", "", &long, &short, &upper, &nameless, &spaced]
        {
            assert_eq!(broken(json!({"backendImageRef": {"image": image}})), "backend-image-shape", "{image}");
        }
        assert_eq!(image_repository("registry.example:5000/a/b:1.2"), "registry.example:5000/a/b");
        assert_eq!(image_repository(&format!("registry.example:5000/a@sha256:{digest}")), "registry.example:5000/a");
    }

    #[test]
    fn variables_are_bounded_and_cannot_replace_the_servers_own() {
        order(json!({"transientEnv": {"GH_TOKEN": "t", "_a1": ""}})).check_extras(Launcher::Kubernetes).unwrap();
        for name in ["", "1A", "A-B", "A B", "PATH", "Path", "HTTPS_PROXY"] {
            assert_eq!(broken(json!({"transientEnv": {name: "t"}})), "transient-env-shape", "{name}");
        }
        assert_eq!(broken(json!({"transientEnv": {"A": "a\u{0}b"}})), "transient-env-shape");
        let long = "x".repeat(TRANSIENT_VALUE_BYTES_MAX + 1);
        assert_eq!(broken(json!({"transientEnv": {"A": long}})), "transient-env-size");
        let whole = "x".repeat(TRANSIENT_VALUE_BYTES_MAX);
        let several: BTreeMap<_, _> = (0..=TRANSIENT_BYTES_MAX / TRANSIENT_VALUE_BYTES_MAX)
            .map(|at| (format!("A{at}"), whole.as_str()))
            .collect();
        assert_eq!(broken(json!({"transientEnv": several})), "transient-env-size");
        let many: BTreeMap<_, _> = (0..=TRANSIENT_VARIABLES_MAX).map(|at| (format!("A{at}"), "t")).collect();
        assert_eq!(broken(json!({"transientEnv": many})), "transient-env-shape");
        assert_eq!(broken(json!({"transientEnv": {"A": "t"}, "standing": true})), "transient-env-shape");
    }

    #[test]
    fn other_launchers_refuse_them_by_name() {
        let order = order(json!({"transientEnv": {"A": "t"}}));
        let failure = order.check_extras(Launcher::Process).unwrap_err();
        assert_eq!(failure.rule_name(), Some("job-field-unsupported"));
        assert!(failure.message.contains("transientEnv"), "{}", failure.message);
        CreateRunnerJob::default().check_extras(Launcher::Resident).unwrap();
    }

    #[test]
    fn values_are_neither_shown_nor_stored_after_the_end() {
        let order = order(json!({"transientEnv": {"A": "pl4nted"}}));
        let shown = order.shown_variables(|name, value| format!("{name} of {value}, tagged").into_bytes());
        assert_eq!((shown[0].name.as_str(), shown[0].value_hash.len()), ("A", HASH_DIGITS));
        let extras = JobExtras { image: None, variables: shown, sealed: Some("00".into()) };
        let ended = JobExtras::without_values(&RawJson::of(&extras));
        assert_eq!(JobExtras::read(&ended), JobExtras { sealed: None, ..extras });
        assert_eq!(JobExtras::read(&RawJson::empty_object()), JobExtras::default());
        assert!(!format!("{order:?}").contains("pl4nted"));
    }
}
