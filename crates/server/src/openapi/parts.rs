//! Finds parts of the document.

use serde_json::{Map, Value};

/// The part of the document at a JSON pointer.
///
/// # Errors
/// The pointer, if the document has no such part.
pub(super) fn part<'a>(document: &'a mut Value, pointer: &str) -> Result<&'a mut Value, String> {
    document.pointer_mut(pointer).ok_or_else(|| format!("the OpenAPI document has no `{pointer}`"))
}

/// Calls a function for each operation of the document.
pub(super) fn each_operation(document: &mut Value, mut call: impl FnMut(&mut Value)) {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for item in paths.into_iter().flat_map(|paths| paths.values_mut()) {
        item.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(&mut call);
    }
}
