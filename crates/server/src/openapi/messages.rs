//! Refines the schemas of WebSocket messages.

use serde_json::{Value, json};

use super::parts::part;

/// Describes the tag `type`, which has no field in the Rust types, and flattens each variant into one object, because
/// client generators do not support a variant composed of a component and a tag.
///
/// # Errors
/// Those of [`part`].
pub(super) fn refine(document: &mut Value) -> Result<(), String> {
    let components = document["components"]["schemas"].clone();
    for name in ["ExecControl", "ExecNotice"] {
        let kinds = part(document, &format!("/components/schemas/{name}/oneOf"))?;
        for kind in kinds.as_array_mut().into_iter().flatten() {
            flatten(kind, &components)?;
            part(kind, "/properties/type")?["description"] = json!("The type of the message.");
        }
    }
    Ok(())
}

/// Replaces `allOf` by the fields of its parts.
///
/// # Errors
/// The name of a component that the document does not have.
fn flatten(kind: &mut Value, components: &Value) -> Result<(), String> {
    let Some(Value::Array(parts)) = kind.as_object_mut().and_then(|kind| kind.remove("allOf")) else {
        return Ok(());
    };
    let (mut properties, mut required) = (json!({}), Vec::new());
    for part in &parts {
        let component = part["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let part = match component {
            Some(name) => {
                components.get(name).ok_or_else(|| format!("the OpenAPI document has no schema `{name}`"))?
            }
            None => part,
        };
        if let (Value::Object(into), Some(more)) = (&mut properties, part["properties"].as_object()) {
            into.extend(more.clone());
        }
        required.extend(part["required"].as_array().into_iter().flatten().cloned());
    }
    kind["type"] = json!("object");
    kind["properties"] = properties;
    kind["required"] = json!(required);
    Ok(())
}
