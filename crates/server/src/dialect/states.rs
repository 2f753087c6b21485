//! The state that dialects opened when the server started, one value per type.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    sync::Arc,
};

#[derive(Clone, Default)]
pub struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.0.insert(TypeId::of::<T>(), Arc::new(state));
        self
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// # Panics
    /// If no dialect of this server has opened such a state. Only the dialect's own code reads it.
    pub fn get<T: Send + Sync + 'static>(&self) -> &T {
        let state = self.0.get(&TypeId::of::<T>()).and_then(|state| state.downcast_ref());
        state.unwrap_or_else(|| panic!("no dialect has opened {}", type_name::<T>()))
    }
}
