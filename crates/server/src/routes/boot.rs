//! Parses and checks the bodies of boots, changes and pauses of VMs.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use skep_api::{
    ErrorCode, Failure, TicketId,
    egress::EgressPolicy,
    swarm::{BASE_TEMPLATE, BootRequest, ChangeRequest, PauseRequest, PausedTo, ResumeRequest},
    tickets::{TICKET_FILE_VARIABLES, TICKET_VARIABLES},
};
use skep_store::{Account, VmAttributes, VmChange};
use skep_swarm::{BootFrom, BootSpec};

use crate::{body::Object, extract::RequestInfo};

/// The shortest `idle_timeout_ms`: VMs are looked at each second.
const MIN_IDLE_TIMEOUT_MS: u64 = 1_000;
/// The longest `ttl_ms` and `idle_timeout_ms`: ten years.
const MAX_TTL_MS: u64 = 10 * 365 * 24 * 3_600 * 1_000;
/// The longest template name, in bytes.
const MAX_TEMPLATE_BYTES: usize = 63;
/// The longest `NAME=value` that the kernel accepts, in bytes without the terminating NUL.
const MAX_VARIABLE_BYTES: usize = (128 << 10) - 1;
/// All variables together, in bytes.
const MAX_ENV_BYTES: usize = 1 << 20;
/// Metadata as JSON, in bytes.
const MAX_METADATA_BYTES: usize = 64 << 10;

/// The defaults of a boot.
#[derive(Debug, Clone, Copy)]
pub struct BootDefaults {
    /// VM limit of an account without its own `max_vms`.
    pub max_vms: u32,
    /// Time to live. `None`: unlimited.
    pub ttl: Option<Duration>,
}

impl BootDefaults {
    /// The defaults for an account, which may have its own.
    pub(super) fn of(self, account: &Account) -> AccountBootDefaults {
        AccountBootDefaults {
            // With a quota of 0, the boot of one VM gets the refusal for the quota.
            max_vms: account.limits.max_vms.unwrap_or(self.max_vms).max(1),
            ttl: self.ttl,
            egress: account.egress.clone(),
        }
    }
}

/// The defaults of an account's boots.
#[derive(Debug, Clone)]
pub(super) struct AccountBootDefaults {
    max_vms: u32,
    /// Time to live. `None`: unlimited.
    ttl: Option<Duration>,
    egress: EgressPolicy,
}

/// The ticket that the VM of a boot works on.
#[derive(Debug, Clone, Copy)]
pub(super) struct TicketWork {
    pub(super) ticket: TicketId,
    /// Whether the VM keeps running when its attempt has ended.
    pub(super) keep_vm: bool,
}

/// Parses a body into an order, and the ticket that its VM works on.
pub(super) fn parse_boot(
    mut object: Object,
    defaults: AccountBootDefaults,
    call: &RequestInfo,
) -> Result<(BootSpec, Option<TicketWork>), Failure> {
    let max_vms = defaults.max_vms;
    let count =
        object.take_integer("count", 1..=u64::from(max_vms), " (the account's max_vms)")?.unwrap_or(1);
    let ttl = take_ttl(&mut object)?.flatten().or(defaults.ttl);
    let idle_timeout_ms = take_idle_timeout(&mut object)?.flatten();
    let request: BootRequest = object.into_request()?;
    check_combination(&request, count, idle_timeout_ms)?;
    let template = request.template.unwrap_or_else(|| BASE_TEMPLATE.to_owned());
    check_template(&template)?;
    let source = BootFrom::Template { reference: template, memory: request.memory.unwrap_or(true) };
    let env = request.env.unwrap_or_default();
    check_env(&env)?;
    let metadata = request.metadata.unwrap_or_default();
    check_metadata(&metadata)?;
    request.command.as_deref().map_or(Ok(()), check_command)?;
    let keeps_egress = request.egress.is_none();
    let order = BootSpec {
        // In range, as `take_integer` checked.
        count: u32::try_from(count).unwrap_or(max_vms),
        attributes: VmAttributes {
            name: request.name,
            metadata,
            expires_at: None,
            egress: request.egress.unwrap_or(defaults.egress),
            idle_timeout_ms,
            on_idle: request.on_idle.unwrap_or_default(),
        },
        source,
        keeps_egress,
        ttl,
        env,
        arrived: call.arrival.monotonic,
        started_at: call.arrival.wall,
        request_id: call.id.as_str().to_owned(),
        work: None,
        command: request.command,
        once: None,
    };
    let keep_vm = request.keep_vm.unwrap_or(false);
    Ok((order, request.ticket.map(|ticket| TicketWork { ticket, keep_vm })))
}

/// Parses the body of a fork, which is that of a boot without a template and its memory.
pub(super) fn parse_fork(
    mut object: Object,
    defaults: AccountBootDefaults,
    call: &RequestInfo,
) -> Result<(BootSpec, Option<TicketWork>), Failure> {
    if let Some(template) = object.take("template") {
        return Err(invalid(format!(
            "`template` is {template}, and a fork begins with its VM; leave it out, or boot the template"
        )));
    }
    if let Some(memory) = object.take("memory") {
        return Err(invalid(format!(
            "`memory` is {memory}, and a fork always begins with the memory of its VM; leave it out, or boot a snapshot of the VM"
        )));
    }
    parse_boot(object, defaults, call)
}

/// Checks the fields that require, or exclude, each other.
fn check_combination(request: &BootRequest, count: u64, idle_timeout_ms: Option<u64>) -> Result<(), Failure> {
    if let Some(name) = request.name.as_ref().filter(|_| count != 1) {
        return Err(invalid(format!(
            "`count` is {count}, and the `name` `{name}` belongs to one VM; boot one VM for each name"
        )));
    }
    if request.ticket.is_some() {
        check_work(count, request.env.as_ref())?;
    } else if request.keep_vm.is_some() {
        return Err(invalid("`keep_vm` applies to the VM of a `ticket`; give both, or neither".to_owned()));
    }
    if let (Some(on_idle), None) = (request.on_idle, idle_timeout_ms) {
        let on_idle = on_idle.as_str();
        return Err(invalid(format!(
            "`on_idle` is `{on_idle}` without an `idle_timeout_ms`; give both, or neither"
        )));
    }
    Ok(())
}

/// Checks what a boot for a ticket must not contain.
fn check_work(count: u64, env: Option<&BTreeMap<String, String>>) -> Result<(), Failure> {
    if count != 1 {
        return Err(invalid(format!(
            "`count` is {count}, and a `ticket` has one VM; boot one for each ticket"
        )));
    }
    let files = TICKET_FILE_VARIABLES.map(|(name, _)| name);
    match TICKET_VARIABLES.iter().chain(&files).find(|name| env.is_some_and(|env| env.contains_key(**name))) {
        Some(name) => Err(invalid(format!("`env.{name}` is set where there is a `ticket`; leave it out"))),
        None => Ok(()),
    }
}

/// Checks that a command can be passed to a shell, so that a boot is not refused after the VM was started.
fn check_command(command: &str) -> Result<(), Failure> {
    let size = command.len();
    if command.contains('\0') {
        return Err(invalid("`command` holds a NUL byte, which no command can".to_owned()));
    }
    if size > MAX_VARIABLE_BYTES {
        return Err(invalid(format!(
            "`command` has {size} bytes; the kernel takes {MAX_VARIABLE_BYTES}: write a script by way of files"
        )));
    }
    Ok(())
}

pub(super) fn parse_change(mut object: Object, call: &RequestInfo) -> Result<VmChange, Failure> {
    let ttl = take_ttl(&mut object)?;
    let idle_timeout_ms = take_idle_timeout(&mut object)?;
    let ChangeRequest { metadata, name, egress, on_idle, .. } = object.into_request()?;
    if let Some(metadata) = &metadata {
        check_metadata(metadata)?;
    }
    let now = call.arrival.wall;
    let expires_at = ttl.map(|ttl| ttl.and_then(|ttl| now.checked_add(ttl).ok()));
    Ok(VmChange { name, metadata, expires_at, egress, idle_timeout_ms, on_idle })
}

/// Parses the body of a pause into the place to pause to.
pub(super) fn parse_pause(mut object: Object) -> Result<PausedTo, Failure> {
    let to = object.take("to").unwrap_or_default();
    object.into_request::<PauseRequest>()?;
    let to: Option<PausedTo> = Object::single("to", to).into_field("to")?;
    Ok(to.unwrap_or(PausedTo::Memory))
}

/// Parses the body of a resume: whether the VM goes on with its memory.
pub(super) fn parse_resume(object: Object) -> Result<bool, Failure> {
    Ok(object.into_request::<ResumeRequest>()?.memory.unwrap_or(true))
}

fn take_ttl(object: &mut Object) -> Result<Option<Option<Duration>>, Failure> {
    let given = take_milliseconds(object, "ttl_ms", 1..=MAX_TTL_MS)?;
    Ok(given.map(|given| given.map(Duration::from_millis)))
}

fn take_idle_timeout(object: &mut Object) -> Result<Option<Option<u64>>, Failure> {
    take_milliseconds(object, "idle_timeout_ms", MIN_IDLE_TIMEOUT_MS..=MAX_TTL_MS)
}

/// Takes out a time. The outer `None` means absent, the inner one null.
fn take_milliseconds(
    object: &mut Object,
    name: &'static str,
    range: RangeInclusive<u64>,
) -> Result<Option<Option<u64>>, Failure> {
    match object.take(name) {
        None => Ok(None),
        Some(serde_json::Value::Null) => Ok(Some(None)),
        Some(value) => Ok(Object::single(name, value).take_integer(name, range, "")?.map(Some)),
    }
}

fn check_metadata(metadata: &serde_json::Map<String, serde_json::Value>) -> Result<(), Failure> {
    let size = serde_json::to_string(metadata).map_or(usize::MAX, |text| text.len());
    if size > MAX_METADATA_BYTES {
        let limit = MAX_METADATA_BYTES >> 10;
        return Err(invalid(format!("`metadata` has {size} bytes as JSON; keep it to {limit} KiB")));
    }
    Ok(())
}

/// A name that no template can have gets the same error as an unknown template.
fn check_template(name: &str) -> Result<(), Failure> {
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let good = (1..=MAX_TEMPLATE_BYTES).contains(&name.len())
        && name.bytes().next().is_some_and(lower)
        && name.bytes().all(|b| lower(b) || b == b'-');
    if good { Ok(()) } else { Err(Failure::unknown_template(name)) }
}

/// Checks that the variables can be passed to a command.
pub(super) fn check_env(env: &BTreeMap<String, String>) -> Result<(), Failure> {
    let mut total = 0;
    for (name, value) in env {
        if !is_variable(name) {
            return Err(invalid(format!(
                "`env` has a variable named {name:?}; a name is letters, digits and `_`, with no digit first"
            )));
        }
        if value.contains('\0') {
            return Err(invalid(format!("`env.{name}` holds a NUL byte, which no variable can")));
        }
        let size = name.len() + 1 + value.len();
        if size > MAX_VARIABLE_BYTES {
            return Err(invalid(format!(
                "`env.{name}` has {size} bytes; the kernel takes {MAX_VARIABLE_BYTES}"
            )));
        }
        total += size;
    }
    if total > MAX_ENV_BYTES {
        return Err(invalid(format!("`env` has {total} bytes; keep it to {MAX_ENV_BYTES}")));
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_named_as_shells_name_them() {
        for good in ["A", "_", "PATH", "a1_B"] {
            assert!(is_variable(good), "{good}");
        }
        for wrong in ["", "1A", "A-B", "A=B", "Ä", "A B", "A\0"] {
            assert!(!is_variable(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_env_that_no_command_could_be_given_is_refused() {
        let env = |value: String| BTreeMap::from([("BIG".to_owned(), value)]);
        assert!(check_env(&env("x".repeat(MAX_VARIABLE_BYTES - 4))).is_ok());
        assert!(check_env(&env("x".repeat(MAX_VARIABLE_BYTES - 3))).is_err());
        assert!(check_env(&env("a\0b".to_owned())).unwrap_err().message.contains("env.BIG"));
        let many = (0..9).map(|n| (format!("V{n}"), "x".repeat(120 << 10))).collect();
        assert!(check_env(&many).is_err());
    }

    #[test]
    fn an_invalid_template_name_is_unknown() {
        assert!(check_template("base").is_ok());
        assert!(check_template(&"a".repeat(63)).is_ok());
        for wrong in ["", "Base", "-a", "a/b", "../x", "a.b", &"a".repeat(64)] {
            assert_eq!(check_template(wrong).unwrap_err().code, ErrorCode::UnknownTemplate, "{wrong}");
        }
    }
}
