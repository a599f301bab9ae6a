//! The schemas of streams. A stream is described by the schema of one of its events, as is usual for OpenAPI.

use serde_json::{Value, json};
use skep_api::events::{STREAM_GAP, TICKET_CURRENT};
use skep_store::{EventFamily, EventKind};

use super::parts::{each_operation, part};

/// A stream of server-sent events.
struct Stream {
    /// The path of the `GET` that answers it. `None`: each operation with a stream that no other entry describes.
    path: Option<&'static str>,
    /// The name of the schema of its events.
    name: &'static str,
    /// What its events are of, for the schema's description.
    of: &'static str,
    /// Whether events have an id, with which a caller reconnects.
    has_id: bool,
    /// The types of its events, and their description.
    types: Vec<&'static str>,
    about_types: &'static str,
    /// The schemas of the data of its events, and their description.
    data: Vec<&'static str>,
    about_data: String,
    example: Value,
}

impl Stream {
    /// The schema of one event.
    fn schema(&self) -> Value {
        let mut properties = json!({});
        if self.has_id {
            properties["id"] = json!({
                "type": "string", "description": "Value for `Last-Event-ID` when reconnecting; absent on `error`.",
            });
        }
        properties["event"] = json!({"type": "string", "enum": self.types, "description": self.about_types});
        let data: Vec<Value> = self.data.iter().map(|name| reference(name)).collect();
        properties["data"] = json!({
            "type": "string", "contentMediaType": "application/json", "contentSchema": {"oneOf": data},
            "description": self.about_data,
        });
        json!({
            "type": "object",
            "description": format!("One server-sent event of {}.", self.of),
            "required": ["event", "data"],
            "properties": properties,
        })
    }

    /// The content of an answer that is this stream.
    fn content(&self) -> Value {
        json!({"schema": reference(self.name), "example": self.example})
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

/// Describes each stream.
///
/// # Errors
/// Those of [`part`].
pub(super) fn describe(document: &mut Value) -> Result<(), String> {
    for stream in streams() {
        part(document, "/components/schemas")?[stream.name] = stream.schema();
        match stream.path {
            Some(path) => {
                let path = path.replace('/', "~1");
                let pointer = format!("/paths/{path}/get/responses/200/content/text~1event-stream");
                *part(document, &pointer)? = stream.content();
            }
            None => {
                let mut is_used = false;
                each_operation(document, |operation| {
                    if let Some(content) = operation.pointer_mut("/responses/200/content/text~1event-stream")
                    {
                        *content = stream.content();
                        is_used = true;
                    }
                });
                if !is_used {
                    return Err("no operation of the OpenAPI document answers with a stream".to_owned());
                }
            }
        }
    }
    Ok(())
}

fn streams() -> [Stream; 5] {
    [
        // First, because the others replace its description of theirs.
        Stream {
            path: None,
            name: "ExecStreamEvent",
            of: "a command",
            has_id: false,
            types: vec!["stdout", "stderr", "exit", "error"],
            about_types: "The type of the event. `exit` and `error` are the last of their stream.",
            data: vec!["ExecData", "ExecExit", "StreamRefusal"],
            about_data:
                "JSON: `ExecData` of `stdout` and `stderr`, `ExecExit`, or `StreamRefusal` of `error`.".into(),
            example: json!({"event": "stdout", "data": r#"{"data":"skep-vm\n","offset":8}"#}),
        },
        Stream {
            path: Some("/api/files/watch"),
            name: "FileWatchEvent",
            of: "a watched folder",
            has_id: false,
            types: vec!["change", "overflow", "error"],
            about_types: "The type. `overflow`: changes were lost. `error`: the stream ends with this reason.",
            data: vec!["FileChange", "StreamRefusal"],
            about_data: "JSON: `FileChange` of `change` and `overflow`, `StreamRefusal` of `error`.".into(),
            example: json!({"event": "change", "data": r#"{"type":"created","path":"/srv/workspace/notes.md"}"#}),
        },
        Stream {
            path: Some("/api/tickets/{id}/log"),
            name: "TicketLogEvent",
            of: "a ticket's log",
            has_id: false,
            types: vec!["output", "end", "error"],
            about_types: "The type of the event. `end` and `error` are the last of their stream.",
            data: vec!["ExecData", "LogEnd", "StreamRefusal"],
            about_data: "JSON: `ExecData` of `output`, `LogEnd` of `end`, or `StreamRefusal` of `error`."
                .into(),
            example: json!({"event": "output", "data": r#"{"data":"hello\n","offset":6}"#}),
        },
        samples(),
        account_events(),
    ]
}

/// The samples of what VMs use.
fn samples() -> Stream {
    Stream {
        path: Some("/api/swarm/metrics"),
        name: "SwarmSampleEvent",
        of: "the samples of the VMs",
        has_id: true,
        types: vec!["sample", "error"],
        about_types: "The type. `error`: the stream ends with this reason.",
        data: vec!["SwarmSample", "StreamRefusal"],
        about_data: "JSON: `SwarmSample` of `sample`, `StreamRefusal` of `error`.".into(),
        example: json!({
            "id": "2026-05-01T12:00:00.000Z",
            "event": "sample",
            "data": "{\"at\":\"2026-05-01T12:00:00.000Z\",\"totals\":{\"vms\":0,\"cpu_percent\":0.0,\"memory_mb\":0},\"vms\":[]}",
        }),
    }
}

/// The events of an account.
fn account_events() -> Stream {
    let kinds = EventKind::ALL.iter().map(|kind| kind.as_str());
    let others = [(TICKET_CURRENT, "CurrentTicket"), (STREAM_GAP, "StreamGap"), ("error", "StreamRefusal")];
    let families = EventFamily::ALL.iter().map(|family| (family.pattern(), event_schema(*family)));
    let data: Vec<(&str, &str)> = families.chain(others).collect();
    let of_types: Vec<String> = data.iter().map(|(types, name)| format!("`{name}` of `{types}`")).collect();
    Stream {
        path: Some("/api/events"),
        name: "EventStreamEvent",
        of: "an account",
        has_id: true,
        types: kinds.chain(others.map(|(kind, _)| kind)).collect(),
        about_types: "The type. `stream.gap`: earlier events are missing. `error`: the stream ends with this reason.",
        data: data.iter().map(|(_, name)| *name).collect(),
        about_data: format!("JSON: {}.", of_types.join(", ")),
        example: json!({
            "id": "evt_3f2a9c0d1b4e5f67_42",
            "event": "vm.ended",
            "data": "{\"id\":\"evt_3f2a9c0d1b4e5f67_42\",\"type\":\"vm.ended\",\"at\":\"2026-05-01T12:00:00.000Z\",\
                     \"request_id\":\"deploy-17.3\",\"vm\":\"vm_01jv0000000000000000000000\",\"pid\":4242,\
                     \"reason\":\"deleted\"}",
        }),
    }
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
