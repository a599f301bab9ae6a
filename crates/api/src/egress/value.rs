//! Egress policies as JSON values.

use serde_json::{Map, Value, json};

use super::{
    EgressEntry, EgressList, EgressPolicy, EgressPreset, InvalidEgressPolicy, MAX_ENTRIES, MAX_POLICY_BYTES,
    MAX_PORTS,
};

impl TryFrom<Value> for EgressPolicy {
    type Error = InvalidEgressPolicy;

    fn try_from(value: Value) -> Result<Self, InvalidEgressPolicy> {
        match &value {
            Value::String(word) if word == "none" => Ok(Self::None),
            Value::String(word) if word == "all" => Ok(Self::All),
            Value::Object(fields) => {
                let other =
                    fields.keys().any(|field| !["allow", "presets", "ports"].contains(&field.as_str()));
                if other || !(fields.contains_key("allow") || fields.contains_key("presets")) {
                    return Err(InvalidEgressPolicy::Shape(shown(&value)));
                }
                let policy = Self::Listed(EgressList {
                    entries: fields.get("allow").map_or(Ok(Vec::new()), parse_entries)?,
                    presets: fields.get("presets").map_or(Ok(Vec::new()), parse_presets)?,
                    ports: fields.get("ports").map(parse_ports).transpose()?.flatten(),
                });
                let bytes = policy.json_bytes();
                if bytes > MAX_POLICY_BYTES { Err(InvalidEgressPolicy::TooLarge(bytes)) } else { Ok(policy) }
            }
            other => Err(InvalidEgressPolicy::Shape(shown(other))),
        }
    }
}

fn parse_entries(value: &Value) -> Result<Vec<EgressEntry>, InvalidEgressPolicy> {
    let allow = list("allow", value, ", or \"none\"")?;
    let entry = |value: &Value| {
        let text = value.as_str().ok_or_else(|| InvalidEgressPolicy::Entry(shown(value)))?;
        EgressEntry::parse(text)
    };
    allow.iter().map(entry).collect()
}

fn parse_presets(value: &Value) -> Result<Vec<EgressPreset>, InvalidEgressPolicy> {
    let preset = |value: &Value| {
        let found = value.as_str().and_then(EgressPreset::by_name);
        found.ok_or_else(|| InvalidEgressPolicy::Preset(shown(value)))
    };
    let mut presets: Vec<EgressPreset> =
        list("presets", value, ", or leave `presets` out")?.iter().map(preset).collect::<Result<_, _>>()?;
    presets.sort_unstable_by_key(|preset| preset.name);
    presets.dedup();
    Ok(presets)
}

/// The values of a list that is neither empty nor too long.
fn list<'value>(
    field: &'static str,
    value: &'value Value,
    hint: &'static str,
) -> Result<&'value [Value], InvalidEgressPolicy> {
    let Value::Array(values) = value else {
        return Err(InvalidEgressPolicy::Shape(shown(&json!({field: value}))));
    };
    let (count, limit) = (values.len(), MAX_ENTRIES);
    if count == 0 || count > limit {
        return Err(InvalidEgressPolicy::Count { field, count, limit, hint });
    }
    Ok(values)
}

fn parse_ports(value: &Value) -> Result<Option<Vec<u16>>, InvalidEgressPolicy> {
    let ports = match value {
        Value::Null => return Ok(None),
        Value::Array(ports) => ports,
        other => return Err(InvalidEgressPolicy::Port(shown(other))),
    };
    if ports.is_empty() || ports.len() > MAX_PORTS {
        let (count, limit) = (ports.len(), MAX_PORTS);
        let hint = ", or leave `ports` out for every port";
        return Err(InvalidEgressPolicy::Count { field: "ports", count, limit, hint });
    }
    let port = |value: &Value| {
        let port = value.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        port.ok_or_else(|| InvalidEgressPolicy::Port(shown(value)))
    };
    let mut ports = ports.iter().map(port).collect::<Result<Vec<u16>, _>>()?;
    ports.sort_unstable();
    ports.dedup();
    Ok(Some(ports))
}

/// The beginning of a value, for an error message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl From<EgressPolicy> for Value {
    fn from(policy: EgressPolicy) -> Self {
        match policy {
            EgressPolicy::None => json!("none"),
            EgressPolicy::All => json!("all"),
            EgressPolicy::Listed(EgressList { entries, presets, ports }) => {
                let allow: Vec<String> = entries.iter().map(ToString::to_string).collect();
                let presets: Vec<&str> = presets.iter().map(|preset| preset.name).collect();
                let mut fields = Map::new();
                if !allow.is_empty() {
                    fields.insert("allow".to_owned(), allow.into());
                }
                if !presets.is_empty() {
                    fields.insert("presets".to_owned(), presets.into());
                }
                if let Some(ports) = ports {
                    fields.insert("ports".to_owned(), ports.into());
                }
                fields.into()
            }
        }
    }
}
