//! Commands inside VMs: `POST /api/swarm/vm/{pid}/exec`, and `POST /api/exec` with `vm`.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use skep_api::{
    ErrorBody, ErrorCode, Failure, VmRef,
    exec::{DEFAULT_TIMEOUT_MS, ExecOutcome, ExecRequest, MAX_TIMEOUT_MS, RunCommand},
};
use skep_store::Store;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Routes, boot::check_env, exec_stream};
use crate::{
    auth::Identity,
    body::Object,
    error::Refusal,
    extract::{Caller, NoParameters, Query, SwarmExec, VmPath, vm_of},
    vms::Vms,
};

/// What these routes use.
#[derive(Clone)]
pub(crate) struct ExecDesk {
    /// The swarm, or why there is none.
    pub vms: Vms,
    /// Where a streaming caller's key is looked up again.
    pub store: Arc<dyn Store>,
}

/// The routes of this file.
pub(crate) fn routes(desk: ExecDesk) -> Routes {
    vec![routes!(exec).with_state(desk.clone()), routes!(exec_in_vm).with_state(desk)]
}

/// Run a command
///
/// Runs `command` by `/bin/sh -c` inside the VM that `vm` names. It answers when the shell has ended; a caller that goes
/// away ends its command. With `stream: true` the answer is a stream of the events `stdout` and `stderr` (`{data}`) and
/// `exit`, the last; an `error` event (`{error, message, code}`) ends a stream whose command's end is unknown.
#[utoipa::path(
    post, path = "/api/exec", tag = "exec", operation_id = "exec", security(("bearer" = ["swarm:exec"])),
    request_body(content = ExecRequest, example = json!({"vm": 4242, "command": "uname -n"})),
    responses(
        (status = 200, description = "How the command ended", content(
            (ExecOutcome = "application/json"), (String = "text/event-stream")
        )),
        (status = 404, description = "No such VM of this account", body = ErrorBody),
        (status = 409, description = "The VM is paused or ended, or the command cannot start", body = ErrorBody),
        (status = 503, description = "This server runs no VMs", body = ErrorBody),
        (status = 504, description = "The guest did not answer in time", body = ErrorBody),
    )
)]
async fn exec(
    State(desk): State<ExecDesk>,
    caller: Caller<SwarmExec>,
    _: Query<NoParameters>,
    object: Object,
) -> Result<Response, Refusal> {
    let (request, timeout_ms) = read(object)?;
    let Some(vm) = request.vm.as_ref().map(|vm| vm.as_text()) else {
        let message = "`vm` is missing: commands run inside VMs; name one by its pid or id";
        return Err(Refusal::new(ErrorCode::MissingParameter, message));
    };
    let (command, streamed) = command(request, timeout_ms)?;
    run(&desk, &caller, vm_of(&vm)?, command, streamed).await
}

/// Run a command in a VM
///
/// As `POST /api/exec`, for the VM in the path.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/exec", tag = "exec", operation_id = "exec_in_vm",
    security(("bearer" = ["swarm:exec"])),
    params(("pid" = String, Path, description = "The VM's process id, or its id")),
    request_body(content = ExecRequest, example = json!({"command": "uname -n"})),
    responses(
        (status = 200, description = "How the command ended", content(
            (ExecOutcome = "application/json"), (String = "text/event-stream")
        )),
        (status = 404, description = "No such VM of this account", body = ErrorBody),
        (status = 409, description = "The VM is paused or ended, or the command cannot start", body = ErrorBody),
        (status = 503, description = "This server runs no VMs", body = ErrorBody),
        (status = 504, description = "The guest did not answer in time", body = ErrorBody),
    )
)]
async fn exec_in_vm(
    State(desk): State<ExecDesk>,
    caller: Caller<SwarmExec>,
    path: VmPath,
    _: Query<NoParameters>,
    object: Object,
) -> Result<Response, Refusal> {
    let (request, timeout_ms) = read(object)?;
    if request.vm.is_some() {
        let message = "unknown field `vm`: the path names the VM already; leave it out";
        return Err(Refusal::new(ErrorCode::UnknownField, message));
    }
    let (command, streamed) = command(request, timeout_ms)?;
    run(&desk, &caller, path.vm()?, command, streamed).await
}

async fn run(
    desk: &ExecDesk,
    caller: &Identity,
    vm: VmRef,
    command: RunCommand,
    streamed: bool,
) -> Result<Response, Refusal> {
    let swarm = desk.vms.reached_by(caller, vm).await?;
    if streamed {
        let events = swarm.exec_stream(&caller.account.id, vm, command).await?;
        return Ok(exec_stream::answer(events, Arc::clone(&desk.store), caller.key.clone()));
    }
    Ok(Json(swarm.exec(&caller.account.id, vm, command).await?).into_response())
}

/// The body, and its timeout in milliseconds.
fn read(mut object: Object) -> Result<(ExecRequest, u64), Failure> {
    let timeout = match object.take("timeout") {
        None | Some(serde_json::Value::Null) => None,
        Some(value) => {
            Object::single("timeout", value).take_whole("timeout", 1..=MAX_TIMEOUT_MS, " (milliseconds)")?
        }
    };
    Ok((object.read()?, timeout.unwrap_or(DEFAULT_TIMEOUT_MS)))
}

/// The command, checked, and whether its output is streamed.
fn command(mut request: ExecRequest, timeout_ms: u64) -> Result<(RunCommand, bool), Failure> {
    let invalid = |message: String| Err(Failure::new(ErrorCode::InvalidValue, message));
    if request.command.contains('\0') {
        return invalid("`command` holds a NUL byte, which no command can".to_owned());
    }
    if let Some(cwd) = request.cwd.as_deref().filter(|cwd| !cwd.starts_with('/') || cwd.contains('\0')) {
        return invalid(format!("`cwd` is {cwd:?}; give an absolute path"));
    }
    let env = request.env.take().unwrap_or_default();
    check_env(&env)?;
    let ExecRequest { command, cwd, stdin, stream, .. } = request;
    Ok((RunCommand { command, cwd, env, stdin, timeout_ms }, stream.unwrap_or(false)))
}
