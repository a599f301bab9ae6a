//! Formats of integers.

use serde_json::Value;

/// Gives the format `int64` to each integer that `int32` is too narrow for. `utoipa` derives `int32` from `u32` too,
/// although half of its numbers are larger; clients that are generated from the document would overflow.
pub(super) fn widen_formats(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("format").is_some_and(|format| format == "int32") && exceeds_int32(fields) {
                fields.insert("format".to_owned(), "int64".into());
            }
            fields.values_mut().for_each(widen_formats);
        }
        Value::Array(values) => values.iter_mut().for_each(widen_formats),
        _ => {}
    }
}

/// Whether a schema allows numbers that a signed 32-bit integer does not hold. If it has no maximum, it allows them if
/// its type is unsigned, which a minimum shows. Fields of the types `u8` and `u16` state their maximum.
fn exceeds_int32(schema: &serde_json::Map<String, Value>) -> bool {
    match schema.get("maximum").and_then(Value::as_i64) {
        Some(maximum) => i32::try_from(maximum).is_err(),
        None => schema.contains_key("minimum"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_exceeds_32_bits_with_a_sign_becomes_int64() {
        let mut document = json!({"properties": {
            "exit_code": {"type": "integer", "format": "int32"},
            "limit": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 2_147_483_647},
            "attempt": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2_147_483_648_u64},
            "lists": [{"items": {"type": "integer", "format": "int32", "minimum": 0}}],
        }});
        widen_formats(&mut document);
        let format = |pointer: &str| document.pointer(&format!("/properties/{pointer}/format")).cloned();
        assert_eq!(format("exit_code"), Some(json!("int32")));
        assert_eq!(format("limit"), Some(json!("int32")));
        assert_eq!(format("attempt"), Some(json!("int64")));
        assert_eq!(format("lists/0/items"), Some(json!("int64")));
    }
}
