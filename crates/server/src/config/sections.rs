//! Sections of the configuration that belong to dialects. The engine reads, checks and lists them without knowing their types.

use std::{any::Any, collections::BTreeMap, fmt::Debug, sync::Arc};

use config::{ConfigError, Value as ConfigValue, ValueKind};
use ostler_protocol::{Failure, json::value_of};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};

use super::Config;

/// A section that a dialect owns. Its type refuses unknown fields and has a default for each field.
pub trait Section:
    Clone + Debug + Default + PartialSchema + Serialize + DeserializeOwned + ToSchema + Send + Sync + 'static
{
    /// Its name in the file.
    const NAME: &'static str;
    /// Names that it had in earlier versions. They still work.
    const FORMER_NAMES: &'static [&'static str] = &[];
    /// Variables of other programs for the same purpose, and the keys whose values they are unless something else sets them.
    const VARIABLES: &'static [(&'static str, &'static str)] = &[];

    /// Every value that cannot work. Called before anything is opened.
    fn problems(&self, _config: &Config) -> Vec<Failure> {
        vec![]
    }
}

/// How a section is read and listed.
#[derive(Clone, Copy)]
pub struct SectionType {
    pub(super) name: &'static str,
    former_names: &'static [&'static str],
    pub(super) variables: &'static [(&'static str, &'static str)],
    read: fn(ConfigValue) -> Result<Arc<dyn AnySection>, ConfigError>,
    pub(super) default: fn() -> Value,
    pub(super) schema: fn() -> RefOr<Schema>,
    pub(super) schemas: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl SectionType {
    pub fn of<T: Section>() -> Self {
        Self {
            name: T::NAME,
            former_names: T::FORMER_NAMES,
            variables: T::VARIABLES,
            read: |value| {
                // Read as a member of a table, so that errors name the whole key.
                let table = [(T::NAME.to_owned(), value)].into_iter().collect();
                let read = BTreeMap::<String, T>::deserialize(ConfigValue::new(None, ValueKind::Table(table)))?;
                Ok(Arc::new(read.into_values().next().unwrap_or_default()))
            },
            default: || T::default().json(),
            schema: T::schema,
            schemas: T::schemas,
        }
    }

    /// The current form of a key that begins with a former name of the section: `agent_runs.busy` is `run_input.busy`.
    pub(super) fn current_key(&self, key: &str) -> Option<String> {
        let (section, rest) = key.split_once('.')?;
        self.former_names.contains(&section).then(|| format!("{}.{rest}", self.name))
    }

    /// The former forms of a key of the section.
    pub(super) fn former_keys(&self, key: &str) -> Vec<String> {
        let rest = key.split_once('.').filter(|(section, _)| *section == self.name).map(|(_, rest)| rest);
        rest.map(|rest| self.former_names.iter().map(|former| format!("{former}.{rest}")).collect()).unwrap_or_default()
    }

    /// The section's table. Keys under a former name count if they are not also under the current one.
    fn take_table(&self, whole: &mut config::Map<String, ConfigValue>) -> ConfigValue {
        let none = || ConfigValue::new(None, ValueKind::Table(config::Map::new()));
        let mut table = whole.remove(self.name).unwrap_or_else(none);
        for name in self.former_names {
            match (&mut table.kind, whole.remove(*name)) {
                (ValueKind::Table(current), Some(ConfigValue { kind: ValueKind::Table(former), .. })) => {
                    for (key, value) in former {
                        current.entry(key).or_insert(value);
                    }
                }
                // Not a section: it is refused like every unknown key.
                (_, Some(other)) => drop(whole.insert((*name).to_owned(), other)),
                (_, None) => {}
            }
        }
        table
    }
}

trait AnySection: Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn json(&self) -> Value;
    fn problems(&self, config: &Config) -> Vec<Failure>;
}

impl<T: Section> AnySection for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn json(&self) -> Value {
        value_of(self)
    }

    fn problems(&self, config: &Config) -> Vec<Failure> {
        Section::problems(self, config)
    }
}

/// The sections that were read or set. One that is missing has its defaults.
#[derive(Clone, Debug, Default)]
pub struct Sections(BTreeMap<&'static str, Arc<dyn AnySection>>);

impl Sections {
    /// Takes the sections of these types out of the whole configuration.
    pub(super) fn take(
        types: &[SectionType],
        whole: &mut config::Map<String, ConfigValue>,
    ) -> Result<Self, ConfigError> {
        let read = types.iter().map(|section| Ok((section.name, (section.read)(section.take_table(whole))?)));
        read.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn problems(&self, config: &Config) -> impl Iterator<Item = Failure> {
        self.0.values().flat_map(|section| section.problems(config))
    }

    pub(super) fn json(&self) -> impl Iterator<Item = (&'static str, Value)> {
        self.0.iter().map(|(name, section)| (*name, section.json()))
    }
}

impl Config {
    /// A dialect's section, with its defaults where nothing was configured.
    pub fn section<T: Section>(&self) -> T {
        let set = self.sections.0.get(T::NAME).and_then(|section| section.as_any().downcast_ref::<T>());
        set.cloned().unwrap_or_default()
    }

    /// Changes a dialect's section.
    pub fn change<T: Section>(&mut self, change: impl FnOnce(&mut T)) {
        let mut section = self.section::<T>();
        change(&mut section);
        self.sections.0.insert(T::NAME, Arc::new(section));
    }
}
