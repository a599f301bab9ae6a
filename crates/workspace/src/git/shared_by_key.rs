//! Values that callers with equal keys share.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// A map of values. Each exists for as long as a caller holds it.
#[derive(Debug)]
pub(super) struct SharedByKey<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K, V> Default for SharedByKey<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V> SharedByKey<K, V> {
    /// The value of a key, which `make` makes if no caller holds one.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = values.get(&key).and_then(Weak::upgrade) {
            return held;
        }
        values.retain(|_, value| value.strong_count() > 0);
        let made = Arc::new(make());
        values.insert(key, Arc::downgrade(&made));
        made
    }
}
