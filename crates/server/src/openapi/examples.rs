//! Adds an example to each request and response body, built from the examples of its fields.

use serde_json::{Map, Value, json};

use super::parts::each_operation;

/// The example of a time, for fields without one.
const TIME: &str = "2026-05-01T12:00:00.000Z";
/// The deepest nesting. Deeper than every schema of the API; ends the recursion of one that contains itself.
const MAX_DEPTH: usize = 16;

/// Adds the examples that the operations do not define themselves.
pub(super) fn add_examples(document: &mut Value) {
    let schemas = document.pointer("/components/schemas").cloned().unwrap_or_default();
    each_operation(document, |operation| {
        fill_contents(operation.get_mut("requestBody"), &schemas);
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        for response in responses.into_iter().flat_map(Map::values_mut) {
            fill_contents(Some(response), &schemas);
        }
    });
}

fn fill_contents(holder: Option<&mut Value>, schemas: &Value) {
    let contents = holder.and_then(|holder| holder.get_mut("content")).and_then(Value::as_object_mut);
    for (kind, content) in contents.into_iter().flatten() {
        if kind != "application/json" || content.get("example").is_some() || content.get("examples").is_some()
        {
            continue;
        }
        if let Some(example) = content.get("schema").and_then(|schema| example_of(schema, schemas, 0)) {
            content["example"] = example;
        }
    }
}

/// A value that a schema allows. `None` if no useful one can be derived.
fn example_of(schema: &Value, schemas: &Value, depth: usize) -> Option<Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let nested = |schema: &Value| example_of(schema, schemas, depth + 1);
    if let Some(example) = schema.get("example").or_else(|| schema.get("examples")?.get(0)) {
        return Some(example.clone());
    }
    if let Some(constant) = schema.get("const").or_else(|| schema.get("enum")?.get(0)) {
        return Some(constant.clone());
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return nested(schemas.get(reference.rsplit('/').next()?)?);
    }
    if let Some(parts) = schema.get("allOf").and_then(Value::as_array) {
        let objects = parts.iter().map(|part| nested(part)?.as_object().cloned());
        return Some(Value::Object(objects.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()));
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let fields = properties.iter().map(|(name, field)| Some((name.clone(), nested(field)?)));
        return Some(Value::Object(fields.collect::<Option<Map<_, _>>>()?));
    }
    if let Some(kinds) = schema.get("oneOf").and_then(Value::as_array) {
        // A nullable field is null in the example, unless the field has its own.
        let null = kinds.iter().any(|kind| kind["type"] == "null");
        return if null { Some(Value::Null) } else { nested(kinds.first()?) };
    }
    example_of_type(schema, nested)
}

fn example_of_type(schema: &Value, below: impl Fn(&Value) -> Option<Value>) -> Option<Value> {
    let kinds = schema.get("type")?;
    if kinds.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "null")) {
        return Some(Value::Null);
    }
    match kinds.as_str()? {
        "string" if schema["format"] == "date-time" => Some(json!(TIME)),
        "array" => Some(json!([below(schema.get("items")?)?])),
        "object" => match schema.get("additionalProperties").filter(|value| value.is_object()) {
            Some(values) => Some(json!({"base": below(values)?})),
            None => Some(json!({})),
        },
        "boolean" => Some(json!(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_built_from_its_fields() {
        let schemas = json!({"Id": {"type": "string", "example": "id_1"}});
        let schema = json!({"properties": {
            "id": {"$ref": "#/components/schemas/Id"},
            "at": {"type": "string", "format": "date-time"},
            "end": {"type": ["string", "null"], "format": "date-time"},
            "parts": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        }});
        assert_eq!(
            example_of(&schema, &schemas, 0),
            Some(json!({"id": "id_1", "at": TIME, "end": null, "parts": ["a"]}))
        );
        assert_eq!(example_of(&json!({"properties": {"name": {"type": "string"}}}), &schemas, 0), None);
    }

    #[test]
    fn a_recursive_schema_terminates() {
        let schemas = json!({"Self": {"properties": {"again": {"$ref": "#/components/schemas/Self"}}}});
        assert_eq!(example_of(&json!({"$ref": "#/components/schemas/Self"}), &schemas, 0), None);
    }
}
