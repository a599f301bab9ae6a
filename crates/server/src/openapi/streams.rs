//! The schemas of streams. A stream is described by the schema of one of its events, as is usual for OpenAPI.

use serde_json::{Value, json};
use skep_api::events::{STREAM_GAP, TICKET_CURRENT};
use skep_store::{EventFamily, EventKind};

use super::constraints::{each_operation, part};

/// Describes each stream.
///
/// # Errors
/// Those of [`part`].
pub(super) fn describe(document: &mut Value) -> Result<(), String> {
    // First, because the others replace its description of theirs.
    command_streams(document)?;
    watch_stream(document)?;
    log_stream(document)?;
    sample_stream(document)?;
    event_stream(document)
}

/// The output of commands, which is the stream of each operation that the other functions do not describe.
fn command_streams(document: &mut Value) -> Result<(), String> {
    {
        let schemas = part(document, "/components/schemas")?;
        let data = ["ExecData", "ExecExit", "StreamRefusal"]
            .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
        schemas["ExecStreamEvent"] = json!({
            "type": "object",
            "description": "One server-sent event of a command.",
            "required": ["event", "data"],
            "properties": {
                "event": {
                    "type": "string", "enum": ["stdout", "stderr", "exit", "error"],
                    "description": "The type of the event. `exit` and `error` are the last of their stream.",
                },
                "data": {
                    "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
                    "description": "JSON: `ExecData` of `stdout` and `stderr`, `ExecExit`, or `StreamRefusal` of `error`.",
                },
            },
        });
    }
    each_operation(document, |operation| {
        if let Some(content) = operation.pointer_mut("/responses/200/content/text~1event-stream") {
            *content = json!({
                "schema": {"$ref": "#/components/schemas/ExecStreamEvent"},
                "example": {"event": "stdout", "data": "{\"data\":\"skep-vm\\n\",\"offset\":8}"},
            });
        }
    });
    Ok(())
}

/// The events of a watched folder.
fn watch_stream(document: &mut Value) -> Result<(), String> {
    {
        let schemas = part(document, "/components/schemas")?;
        let data = ["FileChange", "StreamRefusal"]
            .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
        schemas["FileWatchEvent"] = json!({
            "type": "object",
            "description": "One server-sent event of a watched folder.",
            "required": ["event", "data"],
            "properties": {
                "event": {
                    "type": "string", "enum": ["change", "overflow", "error"],
                    "description": "The type. `overflow`: changes were lost. `error`: the stream ends with this reason.",
                },
                "data": {
                    "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
                    "description": "JSON: `FileChange` of `change` and `overflow`, `StreamRefusal` of `error`.",
                },
            },
        });
    }
    let content = "/paths/~1api~1files~1watch/get/responses/200/content/text~1event-stream";
    *part(document, content)? = json!({
        "schema": {"$ref": "#/components/schemas/FileWatchEvent"},
        "example": {"event": "change", "data": "{\"type\":\"created\",\"path\":\"/srv/workspace/notes.md\"}"},
    });
    Ok(())
}

/// The events of a ticket's log.
fn log_stream(document: &mut Value) -> Result<(), String> {
    let schemas = part(document, "/components/schemas")?;
    let data = ["ExecData", "LogEnd", "StreamRefusal"]
        .map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
    schemas["TicketLogEvent"] = json!({
        "type": "object",
        "description": "One server-sent event of a ticket's log.",
        "required": ["event", "data"],
        "properties": {
            "event": {
                "type": "string", "enum": ["output", "end", "error"],
                "description": "The type of the event. `end` and `error` are the last of their stream.",
            },
            "data": {
                "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
                "description": "JSON: `ExecData` of `output`, `LogEnd` of `end`, or `StreamRefusal` of `error`.",
            },
        },
    });
    let content = "/paths/~1api~1tickets~1{id}~1log/get/responses/200/content/text~1event-stream";
    *part(document, content)? = json!({
        "schema": {"$ref": "#/components/schemas/TicketLogEvent"},
        "example": {"event": "output", "data": "{\"data\":\"hello\\n\",\"offset\":6}"},
    });
    Ok(())
}

/// The samples of what VMs use.
fn sample_stream(document: &mut Value) -> Result<(), String> {
    let schemas = part(document, "/components/schemas")?;
    let data =
        ["SwarmSample", "StreamRefusal"].map(|name| json!({"$ref": format!("#/components/schemas/{name}")}));
    schemas["SwarmSampleEvent"] = json!({
        "type": "object",
        "description": "One server-sent event of the samples of the VMs.",
        "required": ["event", "data"],
        "properties": {
            "id": {"type": "string", "description": "Value for `Last-Event-ID` when reconnecting; absent on `error`."},
            "event": {
                "type": "string", "enum": ["sample", "error"],
                "description": "The type. `error`: the stream ends with this reason.",
            },
            "data": {
                "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
                "description": "JSON: `SwarmSample` of `sample`, `StreamRefusal` of `error`.",
            },
        },
    });
    let content = "/paths/~1api~1swarm~1metrics/get/responses/200/content/text~1event-stream";
    *part(document, content)? = json!({
        "schema": {"$ref": "#/components/schemas/SwarmSampleEvent"},
        "example": {
            "id": "2026-05-01T12:00:00.000Z",
            "event": "sample",
            "data": "{\"at\":\"2026-05-01T12:00:00.000Z\",\"totals\":{\"vms\":0,\"cpu_percent\":0.0,\"memory_mb\":0},\"vms\":[]}",
        },
    });
    Ok(())
}

/// The events of an account.
fn event_stream(document: &mut Value) -> Result<(), String> {
    let schemas = part(document, "/components/schemas")?;
    let kinds = EventKind::ALL.iter().map(|kind| kind.as_str());
    let names: Vec<&str> = kinds.chain([TICKET_CURRENT, STREAM_GAP, "error"]).collect();
    let others = [(TICKET_CURRENT, "CurrentTicket"), (STREAM_GAP, "StreamGap"), ("error", "StreamRefusal")];
    let families = EventFamily::ALL.iter().map(|family| (family.pattern(), event_schema(*family)));
    let bodies: Vec<(&str, &str)> = families.chain(others).collect();
    let data: Vec<Value> =
        bodies.iter().map(|(_, name)| json!({"$ref": format!("#/components/schemas/{name}")})).collect();
    let of_kinds: Vec<String> = bodies.iter().map(|(kinds, name)| format!("`{name}` of `{kinds}`")).collect();
    schemas["EventStreamEvent"] = json!({
        "type": "object",
        "description": "One server-sent event of an account.",
        "required": ["event", "data"],
        "properties": {
            "id": {"type": "string", "description": "Value for `Last-Event-ID` when reconnecting; absent on `error`."},
            "event": {
                "type": "string", "enum": names,
                "description": "The type. `stream.gap`: earlier events are missing. `error`: the stream ends with this reason.",
            },
            "data": {
                "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
                "description": format!("JSON: {}.", of_kinds.join(", ")),
            },
        },
    });
    let content = "/paths/~1api~1events/get/responses/200/content/text~1event-stream";
    *part(document, content)? = json!({
        "schema": {"$ref": "#/components/schemas/EventStreamEvent"},
        "example": {
            "id": "evt_3f2a9c0d1b4e5f67_42",
            "event": "vm.ended",
            "data": "{\"id\":\"evt_3f2a9c0d1b4e5f67_42\",\"type\":\"vm.ended\",\"at\":\"2026-05-01T12:00:00.000Z\",\
                     \"request_id\":\"deploy-17.3\",\"vm\":\"vm_01jv0000000000000000000000\",\"pid\":4242,\
                     \"reason\":\"deleted\"}",
        },
    });
    Ok(())
}

/// The schema of the events of a family.
const fn event_schema(family: EventFamily) -> &'static str {
    match family {
        EventFamily::Key => "KeyEvent",
        EventFamily::Ticket => "TicketEvent",
        EventFamily::Template => "TemplateEvent",
        EventFamily::Vm => "VmEvent",
    }
}
