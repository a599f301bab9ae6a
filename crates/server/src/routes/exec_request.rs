//! Parses and checks what a caller asks to run.

use skep_api::{
    ErrorCode, Failure,
    exec::{
        DEFAULT_TIMEOUT_MS, ExecRequest, MAX_TIMEOUT_MS, OutputEncoding, RunCommand, Stdin, VM_HOME, VmField,
    },
};

use super::boot::check_env;
use crate::{auth::Identity, body::Object, operation_runner::Target};

/// The parsed body, and its timeout in milliseconds.
fn parse_body(mut object: Object) -> Result<(ExecRequest, u64), Failure> {
    let timeout = match object.take("timeout") {
        None | Some(serde_json::Value::Null) => None,
        Some(value) => {
            Object::single("timeout", value).take_integer("timeout", 1..=MAX_TIMEOUT_MS, " (milliseconds)")?
        }
    };
    Ok((object.into_request()?, timeout.unwrap_or(DEFAULT_TIMEOUT_MS)))
}

/// The working directory of commands on the server. Without a root, the command is refused later.
pub(super) fn workspace(caller: &Identity) -> &str {
    caller.account.roots.first().map_or("/", String::as_str)
}

/// The default working directory of a place.
pub(super) fn default_cwd<'caller>(chosen: &Target, caller: &'caller Identity) -> &'caller str {
    match chosen {
        Target::Vm(_) => VM_HOME,
        Target::Workspace => workspace(caller),
    }
}

/// A checked request.
pub(super) struct ExecOrder {
    pub(super) vm: Option<VmField>,
    pub(super) command: RunCommand,
    /// The encoding of the output if it is streamed.
    pub(super) streamed: Option<OutputEncoding>,
}

impl ExecOrder {
    /// Parses a body. A command without a VM starts in `workspace`.
    ///
    /// # Errors
    /// A field is unknown, missing or invalid.
    pub(super) fn parse(object: Object, workspace: &str) -> Result<Self, Failure> {
        let (request, timeout_ms) = parse_body(object)?;
        Self::from_request(request, timeout_ms, workspace)
    }

    fn from_request(mut request: ExecRequest, timeout_ms: u64, workspace: &str) -> Result<Self, Failure> {
        let (vm, encoding) = (request.vm.take(), request.encoding);
        let streamed = request.stream.unwrap_or(false).then(|| encoding.unwrap_or_default());
        if streamed.is_none() && encoding.is_some() {
            let message = "`encoding` needs `stream: true`; an answer that is not streamed is text";
            return Err(Failure::new(ErrorCode::InvalidValue, message));
        }
        let home = if vm.is_some() { VM_HOME } else { workspace };
        Ok(Self { vm, command: check_command(request, timeout_ms, home)?, streamed })
    }

    /// Refuses `vm` in the body, because the path names the VM.
    ///
    /// # Errors
    /// `unknown_field`.
    pub(super) fn refuse_vm(&self) -> Result<(), Failure> {
        if self.vm.is_none() {
            return Ok(());
        }
        let message = "unknown field `vm`: the path names the VM already; leave it out";
        Err(Failure::new(ErrorCode::UnknownField, message))
    }
}

/// The command in the first message of a WebSocket. Its input follows in further messages.
///
/// # Errors
/// As for a body; or a field that WebSockets do not support.
pub(super) fn duplex_command(text: &str, home: &str) -> Result<RunCommand, Failure> {
    let (request, timeout_ms) = parse_body(Object::parse(text.as_bytes())?)?;
    let unsupported = [
        ("vm", request.vm.is_some(), "the address names the VM"),
        ("stdin", request.stdin.is_some(), "input follows in binary messages"),
        ("stream", request.stream.is_some(), "output comes as binary messages"),
        ("encoding", request.encoding.is_some(), "output comes as the exact bytes"),
    ];
    if let Some((field, _, why)) = unsupported.iter().find(|(_, given, _)| *given) {
        let message = format!("`{field}` cannot be given on a WebSocket; leave it out: {why}");
        return Err(Failure::new(ErrorCode::UnknownField, message));
    }
    Ok(RunCommand { stdin: Stdin::STREAMED, ..check_command(request, timeout_ms, home)? })
}

/// Checks a command. A relative `cwd` is resolved against `home`.
fn check_command(mut request: ExecRequest, timeout_ms: u64, home: &str) -> Result<RunCommand, Failure> {
    let invalid = |message: String| Err(Failure::new(ErrorCode::InvalidValue, message));
    if request.command.contains('\0') {
        return invalid("`command` holds a NUL byte, which no command can".to_owned());
    }
    if let Some(cwd) = request.cwd.as_deref().filter(|cwd| cwd.is_empty() || cwd.contains('\0')) {
        return invalid(format!(
            "`cwd` is {cwd:?}; give an absolute path, one relative to {home}, or leave it out to start there"
        ));
    }
    let env = request.env.take().unwrap_or_default();
    check_env(&env)?;
    let ExecRequest { command, cwd, stdin, .. } = request;
    let cwd = cwd
        .map(|cwd| if cwd.starts_with('/') { cwd } else { format!("{}/{cwd}", home.trim_end_matches('/')) });
    Ok(RunCommand { command, cwd, env, stdin: stdin.into(), timeout_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout_of(body: &str) -> Result<u64, Failure> {
        let order = ExecOrder::parse(Object::parse(body.as_bytes())?, "/srv/workspace")?;
        Ok(order.command.timeout_ms)
    }

    #[test]
    fn a_command_has_a_minute_unless_the_request_gives_it_up_to_an_hour() {
        assert_eq!(timeout_of(r#"{"command": "id"}"#).unwrap(), 60_000);
        assert_eq!(timeout_of(r#"{"command": "id", "timeout": 3600000}"#).unwrap(), 3_600_000);
        let refused = timeout_of(r#"{"command": "id", "timeout": 3600001}"#).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidValue);
        assert!(refused.message.contains("`timeout` is 3600001"), "{}", refused.message);
    }
}
