//! References to a VM: process id, id, prefix of the id, host name, address or name.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::VmId;

/// The prefix of a VM's id.
const ID_PREFIX: &str = "vm_";
/// The prefix of a VM's host name, followed by the same characters as in its id.
const HOST_PREFIX: &str = "vm-";
/// The number of characters of an id after its prefix.
const ID_LENGTH: usize = 26;
/// The maximum length of a name, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// On the command line `server:PATH` refers to the server's workspace, so no VM can have this name.
const RESERVED_NAME: &str = "server";

/// A text that is not a valid name of a VM.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAName {
    /// The text has invalid characters or an invalid length.
    #[error(
        "{0:?} cannot be a VM's name: use 1 to {MAX_NAME_BYTES} of a-z, 0-9 and `-`, beginning with a letter or a digit, not digits only"
    )]
    Syntax(String),
    /// The text would be ambiguous where a VM is referred to.
    #[error("`{0}` cannot be a VM's name: it is {1}; choose another name")]
    Reserved(String, &'static str),
}

/// A VM's name, unique among the running and paused VMs of its account. A name is never a valid process id, id, host
/// name or address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmName(String);

impl FromStr for VmName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=MAX_NAME_BYTES).contains(&text.len())
            && text.bytes().next().is_some_and(is_alphanumeric)
            && text.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
            && !text.bytes().all(|byte| byte.is_ascii_digit());
        if !fits {
            // Messages quote only the beginning of a long text.
            return Err(NotAName::Syntax(text.chars().take(MAX_NAME_BYTES + 1).collect()));
        }
        if text == RESERVED_NAME {
            return Err(NotAName::Reserved(text.to_owned(), "the server's own"));
        }
        if id_from_host_name(text).is_some() {
            return Err(NotAName::Reserved(text.to_owned(), "the host name of a VM"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl VmName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for VmName {
    type Error = NotAName;

    fn try_from(text: String) -> Result<Self, NotAName> {
        text.parse()
    }
}

impl From<VmName> for String {
    fn from(name: VmName) -> Self {
        name.0
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for VmName {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                "A VM's name: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or a digit, not digits only, not \
                 `server`, and not a VM's host name.",
            ))
            .pattern(Some("^([a-z]|[0-9]+[a-z-])[a-z0-9-]*$"))
            .max_length(Some(MAX_NAME_BYTES))
            .examples(["builder"])
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for VmName {}

/// A prefix of a VM's id: `vm_` and 1 to 25 of the following characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdPrefix(String);

impl IdPrefix {
    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(ID_PREFIX)?;
        let fits = (1..ID_LENGTH).contains(&rest.len())
            && rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        fits.then(|| Self(text.to_owned()))
    }

    /// Whether the id begins with this prefix.
    pub fn matches(&self, id: VmId) -> bool {
        id.to_string().starts_with(&self.0)
    }
}

/// A reference to a VM, as callers write it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VmRef {
    /// The process id on the server. It may be reused for a later VM.
    Pid(u32),
    /// The stable id, given as such or as a host name.
    Id(VmId),
    /// A prefix of the id, which must match exactly one VM.
    IdPrefix(IdPrefix),
    /// The address inside skep's network namespace. It may be reused for a later VM.
    Address(IpAddr),
    /// The name. It may be reused for a later VM.
    Name(VmName),
}

impl VmRef {
    /// Parses a path segment or the value of a `vm` parameter. Returns `None` for text that cannot refer to a VM.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(id) = text.parse().ok().or_else(|| id_from_host_name(text)) {
            return Some(Self::Id(id));
        }
        // No sign and no leading zero, so that each process id has one spelling.
        let canonical = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        if let Some(pid) = text.parse().ok().filter(|_| canonical) {
            return Some(Self::Pid(pid));
        }
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        IdPrefix::parse(text).map(Self::IdPrefix).or_else(|| text.parse().ok().map(Self::Name))
    }
}

impl fmt::Display for VmRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => pid.fmt(f),
            Self::Id(id) => id.fmt(f),
            Self::IdPrefix(IdPrefix(text)) => text.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// The id of the VM with this host name; `None` if the text is not a host name of a VM.
fn id_from_host_name(text: &str) -> Option<VmId> {
    format!("{ID_PREFIX}{}", text.strip_prefix(HOST_PREFIX)?).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_referred_to_by_pid_id_beginning_host_name_address_or_name() {
        let id = VmId::generate();
        let text = id.to_string();
        assert_eq!(VmRef::parse("42"), Some(VmRef::Pid(42)));
        assert_eq!(VmRef::parse(&text), Some(VmRef::Id(id)));
        assert_eq!(VmRef::parse(&text.replace('_', "-")), Some(VmRef::Id(id)));
        assert_eq!(VmRef::parse("10.77.0.2"), Some(VmRef::Address([10, 77, 0, 2].into())));
        assert_eq!(VmRef::parse("builder"), Some(VmRef::Name("builder".parse().unwrap())));
        for length in 4..text.len() {
            let Some(VmRef::IdPrefix(beginning)) = VmRef::parse(&text[..length]) else { panic!("{length}") };
            assert!(
                beginning.matches(id) && !beginning.matches("vm_70000000000000000000000000".parse().unwrap())
            );
        }
        for wrong in [
            "",
            "Abc",
            "-1",
            "+1",
            "042",
            "1.5",
            "1099511627776",
            " 1",
            "vm_",
            "vm_A",
            "vm_1%",
            "-it",
            "a b",
            "10.77.0",
            "server",
            "a_b",
            "é",
        ] {
            assert_eq!(VmRef::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_name_refers_to_nothing_else() {
        for good in ["a", "web-1", "3d", "0-", "vm-1", "vm", &"a".repeat(63)] {
            let name: VmName = good.parse().unwrap();
            assert_eq!(VmRef::parse(good), Some(VmRef::Name(name)), "{good}");
        }
        let host_name = VmId::generate().to_string().replace('_', "-");
        for wrong in [
            "",
            "1",
            "0042",
            "-a",
            "A",
            "a.b",
            "10.0.0.1",
            "a_b",
            "vm_1",
            "server",
            "a/b",
            &host_name,
            &"a".repeat(64),
        ] {
            let refused = wrong.parse::<VmName>().unwrap_err().to_string();
            assert!(refused.contains(wrong), "{refused}");
        }
    }
}
