//! `POST /api/exec`, `POST /api/swarm/vm/{pid}/exec`, and reconnecting to a streamed command.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use skep_api::{
    Scope,
    endpoint::{MAX_BYTE_OFFSET, check_range},
    exec::{ExecOutcome, ExecRequest, OutputEncoding, VM_HOME},
};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Routes, exec_duplex,
    exec_request::{ExecOrder, workspace},
    exec_state::ExecState,
    exec_stream::{self, ExecPlace},
};
use crate::{
    auth::Identity,
    body::Object,
    error::Refusal,
    extract::{
        Caller, ExecAnywhere, ExecPath, NoParameters, Query, RequestInfo, SwarmExec, VM_REFERENCE, VmPath,
    },
    json::Json,
    openapi::refusals::{ExecAnywhereRefused, ExecReconnectRefused, ExecRefused},
    operation_runner::{OperationRunner, Target},
};

pub(crate) fn routes(state: ExecState) -> Routes {
    let mut routes = exec_duplex::routes(state.clone());
    routes.extend([
        routes!(exec).with_state(state.clone()),
        routes!(exec_in_vm).with_state(state.clone()),
        routes!(exec_again).with_state(state),
    ]);
    routes
}

/// Run a command
///
/// Runs `command` with `/bin/sh -c`: on the server, which needs `server:admin`, or inside the VM that `vm` names, which
/// only needs `swarm:exec`. On the server it runs as the workspace's user and can access the account's roots and the
/// installed programs, but neither the server's data nor its processes. The answer is sent when the shell has ended; if
/// the caller disconnects, the command is ended. With `stream: true` the answer is a stream of `stdout` and `stderr`
/// events (`{data, offset}`), and `exit` as the last; an `error` event (`{error, message, code}`) ends a stream if the
/// end of the command is unknown. `data` is text, with invalid UTF-8 replaced by U+FFFD, or with `encoding: "base64"`
/// the exact bytes. The header `Skep-Exec-Id` is the command's id, with which a caller can reconnect to a command in a
/// VM after the server was restarted.
#[utoipa::path(
    post, path = "/api/exec", tag = "exec", operation_id = "exec",
    security(("bearer" = ["swarm:exec"]), ("bearer" = ["server:admin"])),
    request_body(content = ExecRequest, examples(
        ("In a VM" = (value = json!({"vm": 4242, "command": "uname -n"}))),
        ("On the server" = (value = json!({"command": "ls"}))),
    )),
    responses(
        (status = 200, description = "The outcome of the command", content(
            (ExecOutcome = "application/json"), (String = "text/event-stream")
        )),
        ExecAnywhereRefused,
    )
)]
async fn exec(
    State(state): State<ExecState>,
    caller: Caller<ExecAnywhere>,
    _: Query<NoParameters>,
    call: RequestInfo,
    object: Object,
) -> Result<Response, Refusal> {
    let order = ExecOrder::parse(object, workspace(&caller))?;
    caller.require_scope(if order.vm.is_some() { Scope::SwarmExec } else { Scope::ServerAdmin })?;
    let chosen = Target::from_field(order.vm.as_ref())?;
    OperationRunner::record_resource(&chosen, &call.audit);
    run(&state, &caller, chosen, order).await
}

/// Run a command in a VM
///
/// As `POST /api/exec`, for the VM in the path.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/exec", tag = "exec", operation_id = "exec_in_vm",
    security(("bearer" = ["swarm:exec"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    request_body(content = ExecRequest, example = json!({"command": "uname -n"})),
    responses(
        (status = 200, description = "The outcome of the command", content(
            (ExecOutcome = "application/json"), (String = "text/event-stream")
        )),
        ExecRefused,
    )
)]
async fn exec_in_vm(
    State(state): State<ExecState>,
    caller: Caller<SwarmExec>,
    path: VmPath,
    _: Query<NoParameters>,
    object: Object,
) -> Result<Response, Refusal> {
    let order = ExecOrder::parse(object, VM_HOME)?;
    order.refuse_vm()?;
    run(&state, &caller, Target::Vm(path.vm()?), order).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Offsets {
    /// The `offset` of the last `stdout` event received; default 0, for all output that is kept.
    #[param(maximum = 9_223_372_036_854_775_807_u64)]
    stdout: Option<u64>,
    /// The `offset` of the last `stderr` event received; default 0, for all output that is kept.
    #[param(maximum = 9_223_372_036_854_775_807_u64)]
    stderr: Option<u64>,
    /// The encoding of `data`: `utf-8` (default), or `base64` for the exact bytes.
    #[param(inline)]
    encoding: Option<OutputEncoding>,
}

/// Reconnect to a command
///
/// For a command with `stream: true` whose stream broke because the server was restarted: the command keeps running in
/// its VM, and callers can reconnect until ten minutes after its end. The answer is the same stream, from the given
/// offsets on. The first and the last 512 KiB of each output are kept; if output in between is missing, `exit` has
/// `truncated`. The command that a VM was booted with, whose id is `exec_id` of its record, is followed in the same
/// way; it keeps running when the caller disconnects.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}/exec/{exec_id}", tag = "exec", operation_id = "exec_again",
    security(("bearer" = ["swarm:exec"])),
    params(
        ("pid" = String, Path, description = VM_REFERENCE, example = "4242"),
        ("exec_id" = String, Path, description = "The command's id: the header `Skep-Exec-Id` of its stream",
         example = "exec_1"),
        Offsets,
    ),
    responses(
        (status = 200, description = "The events of the command", content((String = "text/event-stream"))),
        ExecReconnectRefused,
    )
)]
async fn exec_again(
    State(state): State<ExecState>,
    caller: Caller<SwarmExec>,
    path: ExecPath,
    Query(offsets): Query<Offsets>,
) -> Result<Response, Refusal> {
    let (vm, exec_id) = (path.vm()?, path.exec_id()?);
    let (stdout, stderr) = (offsets.stdout.unwrap_or(0), offsets.stderr.unwrap_or(0));
    for (field, offset) in [("stdout", stdout), ("stderr", stderr)] {
        check_range(field, offset, 0..=MAX_BYTE_OFFSET)?;
    }
    let vm = state.vms.awake_vm_for(&caller, vm).await?;
    let (events, ending) = vm.exec_attach(exec_id, stdout, stderr).await?;
    let encoding = offsets.encoding.unwrap_or_default();
    Ok(exec_stream::answer(events, &state, &caller, ExecPlace::Vm(ending), encoding))
}

async fn run(
    state: &ExecState,
    caller: &Identity,
    chosen: Target,
    order: ExecOrder,
) -> Result<Response, Refusal> {
    if let Some(encoding) = order.streamed {
        let (events, ending) = state.runner.stream(caller, chosen, order.command).await?;
        let home = ending.map_or(ExecPlace::Server, ExecPlace::Vm);
        return Ok(exec_stream::answer(events, state, caller, home, encoding));
    }
    Ok(Json(state.runner.run(caller, chosen, order.command).await?).into_response())
}
