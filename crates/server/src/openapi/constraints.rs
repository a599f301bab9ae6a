//! Constraints that the derived schemas cannot express, so that the document rejects what the server rejects.

use serde_json::{Map, Value, json};
use skep_api::{ErrorCode, audit::UNMATCHED_ACTION};
use skep_store::{EventFamily, EventKind};

use super::{
    messages,
    parts::{each_operation, part},
    streams,
};

/// Any text without NUL, which no command, path or variable can contain.
const NO_NUL: &str = "^[^\\u0000]*$";
const ABSOLUTE_PATH: &str = "^/[^\\u0000]*$";
const VARIABLE_NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

const BODY_OF_BOOT: &str = "/paths/~1api~1swarm~1boot/post/requestBody/content/application~1json/schema";
const BODY_OF_FORK: &str =
    "/paths/~1api~1swarm~1vm~1{pid}~1fork/post/requestBody/content/application~1json/schema";

/// Adds the constraints to the document.
///
/// # Errors
/// A part, parameter or property that a constraint is for, and that the document no longer has.
pub(super) fn refine(document: &mut Value) -> Result<(), String> {
    bodies_are_objects(document);
    lift_descriptions(document);
    exec_bodies(document)?;
    streams::describe(document)?;
    messages::refine(document)?;
    for (name, change) in schemas() {
        constrain(document, &format!("/components/schemas/{name}"), change)?;
    }
    for (pointer, change) in inline_schemas() {
        constrain(document, pointer, change)?;
    }
    forks_begin_with_a_vm(document)?;
    vms_in_paths(document)?;
    for (operation, name, change) in parameters(document) {
        merge(&mut parameter(document, operation, name)?["schema"], change);
    }
    Ok(())
}

/// The body of a fork is that of a boot without a template.
fn forks_begin_with_a_vm(document: &mut Value) -> Result<(), String> {
    let boot = part(document, BODY_OF_BOOT)?.clone();
    let fork = part(document, BODY_OF_FORK)?;
    *fork = boot;
    fork["description"] = "Copies to boot. Without a body, or with `{}`, one is booted.".into();
    let fields = part(document, &format!("{BODY_OF_FORK}/properties"))?.as_object_mut();
    fields
        .and_then(|fields| fields.remove("template"))
        .map(drop)
        .ok_or_else(|| "a boot has no template".to_owned())
}

/// Changes to be merged into the schemas of components.
fn schemas() -> [(&'static str, Value); 5] {
    let exec = json!({"properties": {
        "env": {"propertyNames": {"pattern": VARIABLE_NAME}, "additionalProperties": {"pattern": NO_NUL}},
    }, "if": {"required": ["encoding"], "properties": {"encoding": {"type": "string"}}},
       "then": {"required": ["stream"], "properties": {"stream": {"const": true}}},
    });
    [
        ("ExecRequest", exec.clone()),
        ("ExecInVmRequest", exec),
        ("CreateKey", role_or_scopes()),
        ("CreateAccount", json!({"properties": {"roots": roots()}})),
        ("CreateWebhook", webhook()),
    ]
}

/// Exactly one of `role` and `scopes`, and `vm` only with the role `vm`. Not written as `oneOf`, because client
/// generators take its alternatives for the complete body.
fn role_or_scopes() -> Value {
    let absent = json!({"type": "null"});
    json!({
        "if": {"required": ["role"], "properties": {"role": {"type": "string"}}},
        "then": {
            "properties": {"scopes": absent},
            "if": {"properties": {"role": {"const": "vm"}}},
            "then": {"required": ["vm"], "properties": {"vm": pid_or_id()}},
            "else": {"properties": {"vm": absent}},
        },
        "else": {
            "required": ["scopes"],
            "properties": {"scopes": scopes(), "vm": absent},
        },
    })
}

/// Changes to be merged into inline schemas of bodies.
fn inline_schemas() -> [(&'static str, Value); 4] {
    [
        // The process id. `utoipa` has no attribute for the range of a variant.
        ("/components/schemas/VmField/oneOf/0", json!({"minimum": 1, "maximum": u32::MAX})),
        (
            BODY_OF_BOOT,
            json!({"properties": {
                "count": {"type": "integer"},
                "env": {"propertyNames": {"pattern": VARIABLE_NAME}, "additionalProperties": {"pattern": NO_NUL}},
            }}),
        ),
        ("/paths/~1api~1webhooks~1{id}/patch/requestBody/content/application~1json/schema", webhook()),
        (
            "/paths/~1api~1accounts~1{id}/patch/requestBody/content/application~1json/schema",
            json!({"properties": {"roots": roots()}}),
        ),
    ]
}

/// The constraints of a webhook.
fn webhook() -> Value {
    json!({"properties": {
        "types": {"items": {"pattern": format!("^({})$", event_type_pattern())}},
    }})
}

/// The type of `scopes` of a new key, repeated here because client generators need it.
fn scopes() -> Value {
    json!({"type": "array", "items": {"$ref": "#/components/schemas/Scope"}})
}

/// A VM in a path or a body: its pid or its id.
fn pid_or_id() -> Value {
    json!({"anyOf": [{"type": "integer", "format": "int64", "minimum": 1, "maximum": u32::MAX}, {"type": "string"}]})
}

fn roots() -> Value {
    json!({"items": {"pattern": ABSOLUTE_PATH}})
}

/// Replaces "object or null" by an optional body: a body may be absent, but not `null`.
fn bodies_are_objects(document: &mut Value) {
    each_operation(document, |operation| {
        let Some(body) = operation.get_mut("requestBody") else { return };
        let Some(contents) = body.get_mut("content").and_then(Value::as_object_mut) else { return };
        let mut optional = false;
        for schema in contents.values_mut().filter_map(|content| content.get_mut("schema")) {
            let object =
                schema.get("oneOf").and_then(Value::as_array).and_then(|kinds| match kinds.as_slice() {
                    [object, null] if null["type"] == "null" => Some(object.clone()),
                    _ => None,
                });
            if let Some(object) = object {
                *schema = object;
                optional = true;
            }
        }
        body["required"] = json!(!optional);
    });
}

/// Moves the description of a nullable field from its `oneOf` to the field.
fn lift_descriptions(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if !fields.contains_key("description")
                && let Some([kind, null]) =
                    fields.get_mut("oneOf").and_then(Value::as_array_mut).map(Vec::as_mut_slice)
                && null["type"] == "null"
                && let Some(description) = kind.as_object_mut().and_then(|kind| kind.remove("description"))
            {
                fields.insert("description".to_owned(), description);
            }
            fields.values_mut().for_each(lift_descriptions);
        }
        Value::Array(values) => values.iter_mut().for_each(lift_descriptions),
        _ => {}
    }
}

/// Defines `ExecInVmRequest`, which is `ExecRequest` without `vm`, because the path names the VM.
fn exec_bodies(document: &mut Value) -> Result<(), String> {
    let request = part(document, "/components/schemas/ExecRequest")?;
    let mut inside = request.clone();
    inside["description"] = json!("The body of `POST /api/swarm/vm/{pid}/exec`.");
    let properties = inside["properties"].as_object_mut();
    properties
        .and_then(|properties| properties.remove("vm"))
        .ok_or("the schema `ExecRequest` of the OpenAPI document has no property `vm`")?;
    request["description"] = json!("The body of `POST /api/exec`.");
    part(document, "/components/schemas")?["ExecInVmRequest"] = inside;
    let body = "/paths/~1api~1swarm~1vm~1{pid}~1exec/post/requestBody/content/application~1json/schema";
    *part(document, body)? = json!({"$ref": "#/components/schemas/ExecInVmRequest"});
    Ok(())
}

/// A VM in a path is named by its pid or its id.
fn vms_in_paths(document: &mut Value) -> Result<(), String> {
    let mut changed = false;
    each_operation(document, |operation| {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            if parameter["name"] == "pid" && parameter["in"] == "path" {
                parameter["schema"] = pid_or_id();
                changed = true;
            }
        }
    });
    if changed { Ok(()) } else { Err("no path of the OpenAPI document has a parameter `pid`".to_owned()) }
}

/// Changes to be merged into the schemas of parameters: the id of the operation, the name of the parameter, and the
/// change.
fn parameters(document: &mut Value) -> [(&'static str, &'static str, Value); 6] {
    let mut operations = Vec::new();
    each_operation(document, |operation| {
        operations.extend(operation["operationId"].as_str().map(str::to_owned))
    });
    operations.push(UNMATCHED_ACTION.to_owned());
    operations.sort_unstable();
    let codes: Vec<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    let outcome = format!("^(done|refused|[1-5][0-9][0-9]|{})$", codes.join("|"));
    [
        ("list_audit", "action", json!({"enum": operations})),
        ("list_audit", "outcome", json!({"pattern": outcome})),
        ("revoke_all_keys", "all", json!({"enum": [true]})),
        ("events", "types", json!({"pattern": event_types_pattern()})),
        // A browser that has received no event yet may send an empty one.
        ("events", "Last-Event-ID", json!({"pattern": "^(evt_[0-9a-f]{16}_(0|[1-9][0-9]{0,17}))?$"})),
        // A format would make the header a date in generated clients, which is none where it is empty.
        ("swarm_metrics", "Last-Event-ID", json!({"pattern": SAMPLE_ID_PATTERN})),
    ]
}

/// The parameter of an operation.
///
/// # Errors
/// The names of both, if the document has no such parameter.
fn parameter<'a>(document: &'a mut Value, operation: &str, name: &str) -> Result<&'a mut Value, String> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let operations = paths.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut);
    let operations = operations.flat_map(Map::values_mut).filter(|one| one["operationId"] == operation);
    operations
        .filter_map(|one| one.get_mut("parameters").and_then(Value::as_array_mut))
        .flatten()
        .find(|parameter| parameter["name"] == name)
        .ok_or_else(|| {
            format!("the operation `{operation}` of the OpenAPI document has no parameter `{name}`")
        })
}

/// The time of a sample in RFC 3339, or nothing.
const SAMPLE_ID_PATTERN: &str =
    r"^([0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?Z)?$";

/// A pattern of comma-separated types and families of events.
fn event_types_pattern() -> String {
    let one = event_type_pattern();
    format!("^({one})(,({one}))*$")
}

/// A pattern of one type or family, without anchors.
fn event_type_pattern() -> String {
    let families = EventFamily::ALL.iter().map(|family| family.pattern());
    let names = EventKind::ALL.iter().map(|kind| kind.as_str()).chain(families);
    names.map(|name| name.replace('.', "\\.").replace('*', "\\*")).collect::<Vec<_>>().join("|")
}

/// Merges constraints into the schema at a JSON pointer.
///
/// # Errors
/// The pointer, if the document has no such schema, or a property that the constraints name and the schema lacks.
fn constrain(document: &mut Value, pointer: &str, constraints: Value) -> Result<(), String> {
    let schema = part(document, pointer)?;
    for name in named_properties(&constraints) {
        if schema["properties"].get(name).is_none() {
            return Err(format!("the schema `{pointer}` of the OpenAPI document has no property `{name}`"));
        }
    }
    merge(schema, constraints);
    Ok(())
}

/// The properties that constraints of a schema name, also in its conditions.
fn named_properties(constraints: &Value) -> Vec<&str> {
    let properties =
        constraints["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    let required = constraints["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let conditions = ["if", "then", "else"].into_iter().filter_map(|word| constraints.get(word));
    properties.chain(required).chain(conditions.flat_map(named_properties)).collect()
}

/// Merges objects recursively. Any other value replaces the existing one.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        json!({
            "components": {"schemas": {"Key": {"properties": {"role": {"type": "string"}}}}},
            "paths": {"/keys": {"get": {"operationId": "list_keys", "parameters": [{"name": "role", "schema": {}}]}}},
        })
    }

    #[test]
    fn a_constraint_on_a_property_that_is_gone_is_refused() {
        let mut document = document();
        constrain(
            &mut document,
            "/components/schemas/Key",
            json!({"properties": {"role": {"pattern": "a"}}}),
        )
        .unwrap();
        assert_eq!(document.pointer("/components/schemas/Key/properties/role/pattern"), Some(&json!("a")));
        for constraints in [
            json!({"properties": {"scope": {"pattern": "a"}}}),
            json!({"required": ["scope"]}),
            json!({"if": {"required": ["role"]}, "then": {"properties": {"scope": {"const": 1}}}}),
            json!({"if": {"required": ["role"]}, "then": {}, "else": {"if": {"required": ["scope"]}}}),
        ] {
            let before = document.clone();
            let error = constrain(&mut document, "/components/schemas/Key", constraints).unwrap_err();
            assert!(error.contains("`scope`"), "{error}");
            assert_eq!(document, before);
        }
        assert!(constrain(&mut document, "/components/schemas/Keys", json!({})).is_err());
    }

    #[test]
    fn a_constraint_on_a_parameter_that_is_gone_is_refused() {
        let mut document = document();
        assert_eq!(parameter(&mut document, "list_keys", "role").unwrap()["name"], "role");
        for (operation, name) in [("list_keys", "roles"), ("all_keys", "role")] {
            let error = parameter(&mut document, operation, name).unwrap_err();
            assert!(error.contains(operation) && error.contains(name), "{error}");
        }
        assert!(vms_in_paths(&mut document).unwrap_err().contains("`pid`"));
    }
}
