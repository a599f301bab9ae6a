//! The schema of egress policies in the OpenAPI document.

use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Type};

use super::{EgressPreset, MAX_ENTRIES, MAX_PORTS};

/// The schema of a policy: a text or an object, which [`EgressPolicy`] defines.
pub(crate) fn policy_schema() -> utoipa::openapi::Schema {
    policy().build().into()
}

/// The schema of a policy in a request, where null counts as an absent field.
pub(crate) fn requested_policy_schema() -> utoipa::openapi::Schema {
    policy().item(ObjectBuilder::new().schema_type(Type::Null)).build().into()
}

fn policy() -> OneOfBuilder {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    let port =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(f64::from(u16::MAX)));
    let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["none", "all"]));
    let allow = ArrayBuilder::new()
        .items(text)
        .min_items(Some(1))
        .max_items(Some(MAX_ENTRIES))
        .description(Some("Host names, `*.HOST` for all names below one, IPv4 networks and addresses."))
        .examples([serde_json::json!(["api.example.com"])]);
    let presets = EgressPreset::ALL.iter().map(|preset| preset.name);
    let preset = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(presets));
    let presets = ArrayBuilder::new()
        .items(preset)
        .min_items(Some(1))
        .max_items(Some(MAX_ENTRIES))
        .description(Some(describe_presets()))
        .examples([serde_json::json!(["python"])]);
    let ports = ArrayBuilder::new()
        .items(port)
        .min_items(Some(1))
        .max_items(Some(MAX_PORTS))
        .description(Some("The ports that connections may go to; default: every port."))
        .examples([serde_json::json!([443])]);
    let list = ObjectBuilder::new()
        .property("allow", allow)
        .property("presets", presets)
        .property("ports", ports)
        .description(Some("A list has `allow`, `presets` or both."));
    OneOfBuilder::new()
        .item(word)
        .item(list)
        .description(Some(
            "What the VM may connect to outside: `\"none\"` (default); `\"all\"`, which means all public addresses; or \
             `{\"allow\": [...], \"presets\": [...], \"ports\": [...]}` with host names, `*.HOST` for all names below one, IPv4 \
             networks or addresses, names of presets, and ports (default: every port). The server itself, its network, and private, link-local and \
             metadata addresses are never reached, unless the operator allows them.",
        ))
        .examples([serde_json::json!({"allow": ["api.example.com"]})])
}

/// The schema of the policy of an audit entry.
pub(crate) fn audited_policy_schema() -> utoipa::openapi::Schema {
    nullable_policy(
        "The egress policy that the request gave to VMs or to an account. Null if it gave none, and for VMs that were booted with \
         `\"none\"`.",
    )
}

/// The schema of the policy of a snapshot.
pub(crate) fn snapshot_policy_schema() -> utoipa::openapi::Schema {
    nullable_policy(
        "What VMs of a snapshot may connect to outside if their boot has no `egress`: what its VM could at that time. Null for \
         other templates, and for snapshots that an earlier version of skep made: their VMs have the default of the account.",
    )
}

fn nullable_policy(description: &str) -> utoipa::openapi::Schema {
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new()
        .item(null)
        .item(policy_schema())
        .description(Some(description))
        .examples([serde_json::json!({"allow": ["api.example.com"]})])
        .build()
        .into()
}

fn describe_presets() -> String {
    let describe = |preset: &EgressPreset| {
        let hosts: Vec<String> = preset.hosts().collect();
        format!("`{}`: {} ({})", preset.name, preset.purpose, hosts.join(", "))
    };
    let all: Vec<String> = EgressPreset::ALL.iter().map(describe).collect();
    format!("Names of lists of hosts that skep maintains. {}.", all.join("; "))
}
