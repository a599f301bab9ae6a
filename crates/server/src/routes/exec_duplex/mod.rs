//! Commands over a WebSocket, which carries input, output and signals while they run.

mod session;
mod stdin;

use std::{pin::pin, sync::Arc, time::Duration};

use axum::{
    extract::{
        FromRequestParts, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::Response,
};
use http::request::Parts;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, Scope, VmRef,
    exec_stream::{EXEC_PROTOCOL, MAX_MESSAGE_BYTES},
};
use tokio::time::timeout;
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Routes,
    exec_request::{default_cwd, duplex_command},
    exec_state::ExecState,
    exec_stream::ExecPlace,
};
use crate::{
    access_watch::{access_lost, server_closing},
    auth::Identity,
    error::Refusal,
    extract::{Caller, ExecAnywhere, NoParameters, Query, RequestInfo, SwarmExec, VmPath},
    openapi::refusals::DuplexRefused,
    operation_runner::{OperationRunner, Target},
};
use session::{End, Running, refuse, run_session};

const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The read buffer of one connection.
const READ_BUFFER_BYTES: usize = 16 << 10;

pub(crate) fn routes(state: ExecState) -> Routes {
    vec![routes!(exec_duplex).with_state(state.clone()), routes!(exec_duplex_in_vm).with_state(state)]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DuplexQuery {
    /// The VM, by pid or id. Default: the server.
    #[param(example = "4242")]
    vm: Option<String>,
}

/// Run a command over a WebSocket
///
/// Carries the exact bytes of input and output, and signals, while the command runs. The command starts before its
/// input ends, and `timeout` counts from its start. It runs on the server, which needs `server:admin`, or in the VM
/// that `vm` names, which only needs `swarm:exec`.
///
/// The client's first message is a text message with the JSON of `POST /api/exec`, without `vm`, `stdin`, `stream` and
/// `encoding`. Then:
///
/// - A binary message is one byte for the stream (from the client: 0, standard input; from the server: 1, standard output,
///   or 2, standard error), followed by the next bytes of that stream. Messages of a client have at most 1 MiB.
/// - A text message of the client is an `ExecControl`: `{"type": "signal", "name": "SIGINT"}` sends a signal to the command's
///   process group, `{"type": "end_of_stdin"}` ends its input. Without it the input does not end.
/// - A text message of the server is an `ExecNotice`: `{"type": "started", "id": ...}` first, `{"type": "stdin", "taken": ...,
///   "open": ...}` as the command reads its input, and last `{"type": "exit", "exit_code": ..., ...}` with the fields of
///   `ExecExit`, or `{"type": "error", "error": ..., "message": ..., "code": ...}`.
///
/// The server buffers up to 256 KiB of input that the command has not read, and then reads no more messages. A client
/// that keeps no more than that unacknowledged (see `taken`) can always send signals. While the client does not read,
/// the server does not read the command's output, so the command waits; a client that reads nothing for a minute is
/// disconnected. If the client disconnects or its key is revoked, the command is ended. When the server is restarted, a
/// command in a VM keeps running without further input: `GET /api/swarm/vm/{pid}/exec/{exec_id}` reconnects to its
/// output, with the bytes received of each stream as offsets.
///
/// A client that cannot set `Authorization`, such as a browser, offers the subprotocols `skep.exec.v1` and
/// `bearer.<key>`.
#[utoipa::path(
    get, path = "/api/exec", tag = "exec", operation_id = "exec_duplex",
    security(("bearer" = ["swarm:exec"]), ("bearer" = ["server:admin"])),
    params(DuplexQuery),
    responses(
        (status = 101, description = "A WebSocket, if the request asks for one (RFC 6455)"),
        DuplexRefused,
    )
)]
async fn exec_duplex(
    State(state): State<ExecState>,
    caller: Caller<ExecAnywhere>,
    Query(query): Query<DuplexQuery>,
    call: RequestInfo,
    upgrade: Result<Upgrade, Refusal>,
) -> Result<Response, Refusal> {
    // The scope depends on a parameter, so a malformed request is refused first, as for a body.
    let (scope, upgrade) = match query.vm {
        Some(_) => (Scope::SwarmExec, upgrade),
        None => (Scope::ServerAdmin, Ok(upgrade?)),
    };
    caller.require_scope(scope)?;
    let chosen = Target::from_query(query.vm.as_deref())?;
    OperationRunner::record_resource(&chosen, &call.audit);
    accept(state, caller.identity(), chosen, upgrade).await
}

/// Run a command in a VM over a WebSocket
///
/// As `GET /api/exec`, for the VM in the path.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}/exec", tag = "exec", operation_id = "exec_duplex_in_vm",
    security(("bearer" = ["swarm:exec"])),
    params(("pid" = String, Path, description = "The pid or the id of the VM", example = "4242")),
    responses(
        (status = 101, description = "A WebSocket, if the request asks for one (RFC 6455)"),
        DuplexRefused,
    )
)]
async fn exec_duplex_in_vm(
    State(state): State<ExecState>,
    caller: Caller<SwarmExec>,
    path: VmPath,
    _: Query<NoParameters>,
    upgrade: Result<Upgrade, Refusal>,
) -> Result<Response, Refusal> {
    accept(state, caller.identity(), Target::Vm(path.vm()?), upgrade).await
}

/// A request that asks for a WebSocket.
struct Upgrade(WebSocketUpgrade);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        Ok(Self(upgrade.map_err(|rejection| {
            let message = format!(
                "GET here opens a WebSocket, and the request does not ask for one ({}); a proxy in between must pass on \
                 `Connection: Upgrade` and `Upgrade: websocket`; POST runs a command without a WebSocket",
                rejection.body_text()
            );
            Failure::new(ErrorCode::UpgradeRequired, message)
        })?))
    }
}

async fn accept(
    state: ExecState,
    caller: Arc<Identity>,
    chosen: Target,
    upgrade: Result<Upgrade, Refusal>,
) -> Result<Response, Refusal> {
    let (chosen, awake) = match chosen {
        Target::Vm(vm) => {
            // Checked before the upgrade, because then the refusal has an HTTP status.
            let awake = state.vms.awake_vm_for(&caller, vm).await?;
            (Target::Vm(VmRef::Id(awake.record().id)), Some(awake))
        }
        Target::Workspace => (Target::Workspace, None),
    };
    let Upgrade(upgrade) = upgrade?;
    let session = state.sessions.token();
    Ok(upgrade
        .protocols([EXEC_PROTOCOL])
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .on_upgrade(move |socket| async move {
            serve(socket, &state, &caller, chosen).await;
            drop(awake);
            drop(session);
        }))
}

async fn serve(mut socket: WebSocket, state: &ExecState, caller: &Identity, chosen: Target) {
    let aborted = async {
        tokio::select! {
            failure = access_lost(Arc::clone(&state.store), caller) => End::Refused(failure.into()),
            () = server_closing(state.closing.clone()) => End::Closing,
        }
    };
    let mut aborted = pin!(aborted);
    let started = tokio::select! {
        started = start(&mut socket, state, caller, chosen) => started,
        end = &mut aborted => match end {
            End::Refused(refusal) => Err(Some(refusal)),
            _ => Err(Some(Refusal::new(ErrorCode::ShuttingDown, "the server is shutting down; try again"))),
        },
    };
    match started {
        Ok(running) => run_session(socket, running, aborted).await,
        Err(Some(refusal)) => refuse(socket, &refusal).await,
        Err(None) => {}
    }
}

/// Starts the command of the first message. `Err(None)` means that the caller disconnected.
async fn start(
    socket: &mut WebSocket,
    state: &ExecState,
    caller: &Identity,
    chosen: Target,
) -> Result<Running, Option<Refusal>> {
    let text = first_message(socket).await?;
    let command =
        duplex_command(&text, default_cwd(&chosen, caller)).map_err(|failure| Some(failure.into()))?;
    let (events, ending) = state.runner.stream(caller, chosen, command).await.map_err(Some)?;
    Ok(Running { events, home: ending.map_or(ExecPlace::Server, ExecPlace::Vm) })
}

async fn first_message(socket: &mut WebSocket) -> Result<String, Option<Refusal>> {
    let wrong = |message: &str| Some(Refusal::new(ErrorCode::MalformedBody, message));
    let arriving = async {
        loop {
            match socket.recv().await {
                Some(Ok(Message::Text(text))) => return Ok(text.as_str().to_owned()),
                Some(Ok(Message::Binary(_))) => {
                    return Err(wrong(
                        "the first message must be a text message with the JSON of the command",
                    ));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(None),
            }
        }
    };
    let arrived = timeout(FIRST_MESSAGE_TIMEOUT, arriving).await;
    arrived.unwrap_or_else(|_| Err(wrong("no message named a command within 30 s")))
}
