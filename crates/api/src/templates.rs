//! Templates: the snapshots that VMs are restored from.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    AccountId, TemplateId,
    egress::EgressPolicy,
    scope::{UnknownWord, words},
};

/// The smallest memory of a guest, in MiB.
pub const MIN_MEMORY_MB: u64 = 128;
/// The largest disk of a guest, in MiB: 1 TiB.
pub const MAX_DISK_MB: u64 = 1 << 20;
/// The maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 63;

/// The size of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSize {
    /// Memory, in MiB.
    pub memory_mb: u64,
    /// Virtual processors.
    pub vcpus: u32,
    /// Size of the disk, in MiB.
    pub disk_mb: u64,
}

/// A text that is not a valid name of a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a template's name: use 1 to {MAX_NAME_BYTES} of a-z, 0-9 and `-`, beginning with a letter or a digit"
)]
pub struct NotATemplateName(String);

/// A template's name, unique among the templates of its account. `base` is the template of the server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

impl FromStr for TemplateName {
    type Err = NotATemplateName;

    fn from_str(text: &str) -> Result<Self, NotATemplateName> {
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=MAX_NAME_BYTES).contains(&text.len())
            && text.bytes().next().is_some_and(is_alphanumeric)
            && text.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-');
        // Messages quote only the beginning of a long text.
        let refused = || NotATemplateName(text.chars().take(MAX_NAME_BYTES + 1).collect());
        if fits { Ok(Self(text.to_owned())) } else { Err(refused()) }
    }
}

impl TemplateName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TemplateName {
    type Error = NotATemplateName;

    fn try_from(text: String) -> Result<Self, NotATemplateName> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for TemplateName {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                "A template's name: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or a digit.",
            ))
            .pattern(Some("^[a-z0-9][a-z0-9-]*$"))
            .max_length(Some(MAX_NAME_BYTES))
            .examples(["big"])
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for TemplateName {}

words! {
    /// What a template was made from.
    TemplateSource, "source":
    /// The server's own template, which everybody may use.
    Base = "base",
    /// Another template, with a different size.
    Setup = "setup",
    /// A VM that ran, with its files, memory and processes at that moment.
    Vm = "vm",
}

words! {
    /// The state of a template.
    TemplateState, "state":
    /// It is being built.
    Building = "building",
    /// VMs can be restored from it.
    Ready = "ready",
    /// It could not be built.
    Failed = "failed",
    /// Its files do not match their checksums. It is being built again, unless it is a snapshot of a VM.
    Damaged = "damaged",
    /// It was built for another machine, kernel or version of skep. It is being built again, unless it is a snapshot of a VM.
    Outdated = "outdated",
}

/// The record of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Template {
    /// The name, unique among the account's templates.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$", example = "big")
    )]
    pub name: TemplateName,
    /// The unique and stable id.
    pub id: TemplateId,
    /// What the template was made from: `base` for the server's own, `setup` for one made from `parent`, `vm` for a snapshot
    /// of a VM that was booted from `parent`.
    pub source: TemplateSource,
    /// The name of the template that this one was made from; null for `base`.
    #[cfg_attr(feature = "openapi", schema(inline))]
    pub parent: Option<TemplateName>,
    /// Whether VMs can be restored from it.
    pub state: TemplateState,
    /// What is being done while the template is built; null otherwise, or if that is not known.
    #[cfg_attr(feature = "openapi", schema(example = "boot a guest from the disk"))]
    pub progress: Option<String>,
    /// Why the template is `failed`, `damaged` or `outdated`; null otherwise.
    pub error: Option<String>,
    /// The memory of a VM, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 4096))]
    pub memory_mb: u64,
    /// The number of virtual processors of a VM.
    #[cfg_attr(feature = "openapi", schema(example = 4))]
    pub vcpus: u32,
    /// The size of a VM's disk, in MiB.
    #[cfg_attr(feature = "openapi", schema(example = 20_480))]
    pub disk_mb: u64,
    /// The space that its files occupy on the server's disk, in bytes; null until it was built.
    #[cfg_attr(feature = "openapi", schema(example = 734_003_200))]
    pub size_bytes: Option<u64>,
    /// The part of `size_bytes` that this template added. Not in it are the kernel, the initial ramdisk and the root file system,
    /// which it shares with the template that it was made from; for a snapshot, neither is the memory of `parent`. It does not
    /// change when other templates are made or deleted.
    #[cfg_attr(feature = "openapi", schema(example = 104_857_600))]
    pub own_bytes: Option<u64>,
    /// What VMs of a snapshot may connect to outside if their boot has no `egress`: what its VM could at that time. Null for other
    /// templates, and for snapshots that an earlier version of skep made: their VMs have the default of the account.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::egress::snapshot_policy_schema))]
    #[serde(default)]
    pub egress: Option<EgressPolicy>,
    /// Whether all accounts may use it.
    pub public: bool,
    /// The purpose of the template, for people.
    #[cfg_attr(feature = "openapi", schema(example = "for builds"))]
    pub description: Option<String>,
    /// The account that it belongs to; null for `base`.
    pub account: Option<AccountId>,
    /// When the template was created; for `base`, when this server first had one.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    #[serde(with = "crate::time")]
    pub created_at: Timestamp,
    /// When a VM was last booted from it; null if none was.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    #[serde(default, with = "crate::time::option")]
    pub last_used_at: Option<Timestamp>,
    /// The number of the account's templates that were made from it.
    #[cfg_attr(feature = "openapi", schema(example = 0))]
    pub children: u32,
    /// The number of the account's running and paused VMs that were restored from it.
    #[cfg_attr(feature = "openapi", schema(example = 2))]
    pub vms: u32,
}

/// A page of templates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateList {
    /// `base` first, then the oldest first.
    pub templates: Vec<Template>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// A template to build. Body of `POST /api/templates`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTemplate {
    /// The name, unique among the account's templates; not `base`.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$", example = "big")
    )]
    pub name: TemplateName,
    /// The name or id of the template whose disk the new one begins with. It must be `ready`.
    #[cfg_attr(feature = "openapi", schema(example = "base"))]
    pub from: String,
    /// The memory of a VM, in MiB: at least 128, at most the server's memory for VMs; default: as in `from`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 128, maximum = 1_099_511_627_776_u64, example = 4096))]
    pub memory_mb: Option<u64>,
    /// The number of virtual processors of a VM, at most as many as the server has; default: as in `from`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 4_294_967_295_u64, example = 4))]
    pub vcpus: Option<u32>,
    /// The size of a VM's disk, in MiB: at least that of `from`, at most 1,048,576; default: as in `from`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::whole_number::optional"
    )]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_048_576, example = 20_480))]
    pub disk_mb: Option<u64>,
    /// The purpose of the template, for people: one line of at most 500 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(max_length = 500, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$", example = "for builds")
    )]
    pub description: Option<String>,
}

/// The answer of `DELETE /api/templates/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedTemplate {
    /// The name that the template had.
    #[cfg_attr(
        feature = "openapi",
        schema(value_type = String, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$", example = "big")
    )]
    pub name: TemplateName,
    /// The id of the template.
    pub id: TemplateId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_an_id() {
        for right in ["a", "big", "0", "base", "a-b", &"a".repeat(63)] {
            assert_eq!(right.parse::<TemplateName>().unwrap().as_str(), right);
        }
        let id = TemplateId::generate().to_string();
        for wrong in ["", "-a", "A", "a_b", "a.b", "../x", "ä", &"a".repeat(64), &id] {
            assert!(wrong.parse::<TemplateName>().is_err(), "{wrong}");
        }
    }
}
