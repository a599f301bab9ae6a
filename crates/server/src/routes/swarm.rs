//! `/api/swarm`: status, boot and cleanup of the swarm, and operations on one VM.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use skep_api::{
    Scope, VmRef,
    egress::{EgressPolicy, EgressReport},
    swarm::{
        BootAnswer, BootRequest, Capacity, ChangeRequest, CleanupAnswer, Console, DeleteAnswer, PauseRequest,
        ResumeRequest, SwarmStatus, Vm, VmMetrics,
    },
};
use skep_store::{IdempotentRequest, Store};
use skep_swarm::{BootFrom, BootSpec};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Answer, Routes,
    boot::{BootDefaults, TicketWork, parse_boot, parse_change, parse_fork, parse_pause, parse_resume},
    boot_work::Booter,
    tickets::replayable_response,
};
use crate::{
    body::{NoBody, Object},
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmRead, SwarmWrite, VM_REFERENCE, VmPath},
    json::Json,
    openapi::refusals::{
        BootRefused, ChangeVmRefused, CleanupRefused, ForkRefused, PauseRefused, ResumeRefused, VmRefused,
        VmmRefused,
    },
    swarm_handle::SwarmHandle,
    tickets::{IDEMPOTENCY_KEY_DESCRIPTION, InProgressRequests, idempotency_key},
};

#[derive(Clone)]
pub(crate) struct SwarmState {
    /// The swarm, or the reason why there is none.
    pub vms: SwarmHandle,
    pub defaults: BootDefaults,
    /// Used to claim the ticket of a boot, and to keep the answer of a boot with an idempotency key.
    pub store: Arc<dyn Store>,
    /// The boots with an idempotency key that are in progress.
    pub in_progress: InProgressRequests,
}

pub(crate) fn routes(state: SwarmState) -> Routes {
    vec![
        routes!(status).with_state(state.clone()),
        routes!(boot).with_state(state.clone()),
        routes!(cleanup).with_state(state.clone()),
        routes!(vm, change_vm, end).with_state(state.clone()),
        routes!(fork).with_state(state.clone()),
        routes!(pause).with_state(state.clone()),
        routes!(resume).with_state(state.clone()),
        routes!(console).with_state(state.clone()),
        routes!(vm_metrics).with_state(state.clone()),
        routes!(egress).with_state(state),
    ]
}

/// Read the swarm's status
///
/// Returns the account's VMs, the capacity of the machine, and the engine in use (null if this server runs no VMs).
#[utoipa::path(
    get, path = "/api/swarm/status", tag = "swarm", operation_id = "swarm_status", security(("bearer" = ["swarm:read"])),
    responses((status = 200, description = "VMs, pool, capacity and engine", body = SwarmStatus))
)]
async fn status(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    _: Query<NoParameters>,
) -> Answer<SwarmStatus> {
    match state.vms.swarm().await {
        Ok(swarm) => Ok(Json(swarm.status(&caller.account.id).await?)),
        Err(_) => Ok(Json(SwarmStatus {
            vms: Vec::new(),
            count: 0,
            disk_used_mb: 0,
            pool: Default::default(),
            capacity: Capacity::default(),
            engine: None,
        })),
    }
}

/// Boot VMs
///
/// Restores VMs from a template's snapshot: all of them or none. When it answers, each takes commands under its own
/// identity. No body, an empty one and `{}` mean one VM. A `name` needs a `count` of 1. With `ticket`, which also needs
/// the scope `tickets:write`, the ticket is claimed first; a failed boot releases it, which does not count as a failed
/// attempt. The VM ends with its attempt, unless `keep_vm` is true. With `command`, which also needs the scope
/// `swarm:exec`, that command is started in each VM and runs independently of the caller.
#[utoipa::path(
    post, path = "/api/swarm/boot", tag = "swarm", operation_id = "boot", security(("bearer" = ["swarm:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)),
    request_body(content = inline(Option<BootRequest>), example = json!({"count": 10})),
    responses(
        (status = 201, description = "The VMs", body = BootAnswer, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        BootRefused,
    )
)]
async fn boot(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let once = idempotency_key(&headers, "/api/swarm/boot", &object)?;
    let (order, work) = parse_boot(object, state.defaults.of(&caller.account), &call)?;
    boot_and_answer(state, &caller, &call, order, work, once).await
}

/// Boots what a parsed request asks for.
async fn boot_and_answer(
    state: SwarmState,
    caller: &Caller<SwarmWrite>,
    call: &RequestInfo,
    mut order: BootSpec,
    work: Option<TicketWork>,
    once: Option<IdempotentRequest>,
) -> Result<Response, Refusal> {
    if work.is_some() {
        caller.require_scope(Scope::TicketsWrite)?;
    }
    if order.command.is_some() {
        caller.require_scope(Scope::SwarmExec)?;
    }
    let asked = Some(&order.attributes.egress).filter(|policy| **policy != EgressPolicy::None);
    call.audit.set_egress(asked);
    let swarm = state.vms.swarm().await?.clone();
    let in_progress = state.in_progress.begin(caller.account.id, once.as_ref())?;
    order.once = once;
    let booter = Booter::new(Arc::clone(&state.store), caller, call);
    let booted = booter.boot(swarm, order, work, in_progress).await?;
    match booted.answer.vms.as_slice() {
        [] => {}
        [one] => call.audit.set_resource(one.id),
        // The events with the same request id name all of them.
        [first, others @ ..] => {
            call.audit.set_resource(format_args!("{} and {} more", first.id, others.len()))
        }
    }
    Ok(replayable_response(StatusCode::CREATED, booted, |answer| Json(answer).into_response()))
}

/// Fork a VM
///
/// Copies a running VM as it is at this moment, and boots the copies: all of them or none. A copy begins with the files, the
/// memory and the processes of the VM, under an identity of its own: address, host name, machine id, kernel random numbers and
/// clock. Its programs continue when it has all of that. Commands in progress go on in the copies, under their ids. Metadata
/// and environment variables are inherited; ticket, key, name, time to live and `egress` are not. The body is that of a boot,
/// without `template` and `memory`. The VM stands still for a moment and runs on.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/fork", tag = "swarm", operation_id = "fork_vm", security(("bearer" = ["swarm:write"])),
    params(
        ("pid" = String, Path, description = VM_REFERENCE, example = "4242"),
        ("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)
    ),
    request_body(content = inline(Option<BootRequest>), example = json!({"count": 10})),
    responses(
        (status = 201, description = "The copies", body = BootAnswer, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        ForkRefused,
    )
)]
async fn fork(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let vm = path.vm()?;
    let (given, keeps_metadata) = (object.with("pid", ""), !object.has("metadata"));
    let (mut order, work) = parse_fork(object, state.defaults.of(&caller.account), &call)?;
    let (_, vm) = state.vms.vm_for(&caller, vm).await?;
    // The same key and body for another VM are another request.
    let once = idempotency_key(&headers, "/api/swarm/vm/fork", &given.with("pid", vm.to_string()))?;
    order.source = BootFrom::Vm { vm, keeps_metadata };
    boot_and_answer(state, &caller, &call, order, work, once).await
}

/// End all VMs
///
/// Ends all VMs of the account and removes their resources. The pool is not affected.
#[utoipa::path(
    post, path = "/api/swarm/cleanup", tag = "swarm", operation_id = "cleanup", security(("bearer" = ["swarm:write"])),
    responses(
        (status = 200, description = "The number of ended VMs", body = CleanupAnswer, example = json!({"terminated": 10})),
        CleanupRefused,
    )
)]
async fn cleanup(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    _: NoBody,
) -> Answer<CleanupAnswer> {
    call.audit.set_resource(caller.account.id);
    let terminated = state.vms.swarm().await?.cleanup(&caller.account.id, call.id.as_str()).await?;
    Ok(Json(CleanupAnswer { terminated }))
}

/// Read a VM
///
/// Returns its record, with the receipt of its boot.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}", tag = "swarm", operation_id = "read_vm", security(("bearer" = ["swarm:read"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    responses(
        (status = 200, description = "The record", body = Vm),
        VmRefused,
    )
)]
async fn vm(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    path: VmPath,
    _: Query<NoParameters>,
) -> Answer<Vm> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    Ok(Json(swarm.vm(&caller.account.id, VmRef::Id(vm)).await?))
}

/// Change a VM
///
/// `metadata` replaces all existing metadata. `ttl_ms` counts from now; null removes it, and likewise `name`. Absent
/// fields stay unchanged.
#[utoipa::path(
    patch, path = "/api/swarm/vm/{pid}", tag = "swarm", operation_id = "change_vm", security(("bearer" = ["swarm:write"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    request_body(content = inline(Option<ChangeRequest>), example = json!({"ttl_ms": 600_000})),
    responses(
        (status = 200, description = "The record", body = Vm),
        ChangeVmRefused,
    )
)]
async fn change_vm(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    object: Object,
) -> Answer<Vm> {
    let vm = path.vm()?;
    let change = parse_change(object, &call)?;
    call.audit.set_egress(change.egress.as_ref());
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    let changed = swarm.change(&caller.account.id, vm, change, call.id.as_str()).await?;
    call.audit.set_resource(changed.id);
    Ok(Json(changed))
}

/// End a VM
///
/// Ends a VM in any state. When it answers, all resources of the VM are removed.
#[utoipa::path(
    delete, path = "/api/swarm/vm/{pid}", tag = "swarm", operation_id = "end_vm", security(("bearer" = ["swarm:write"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    responses(
        (status = 200, description = "It was ended", body = DeleteAnswer),
        VmRefused,
    )
)]
async fn end(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
) -> Answer<DeleteAnswer> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    let ended = swarm.end(&caller.account.id, vm, call.id.as_str()).await?;
    call.audit.set_resource(ended.id);
    Ok(Json(DeleteAnswer { pid: ended.pid, id: ended.id, terminated: true }))
}

/// Pause a VM
///
/// Stops the processors of a VM: its processes stand still, and it uses no CPU. Its memory, its disk and its place in the
/// quota and in the capacity of the machine stay in use, and its time to live goes on. With `to: disk`, the memory is written
/// to the server's disk as well, and the VMM ends: only the address, the name and the disk space stay in use, and `pid` is
/// null. A paused VM stays paused when the server is restarted, one on disk also when the machine is. Until it is resumed,
/// requests that need the VM to run answer 409 `vm_paused`. Those in progress stand still: they go on when the VM is resumed,
/// or reach their own time limits. A VM that is paused already stays as it is, but one that its `idle_timeout_ms` paused
/// is not resumed by other requests any more.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/pause", tag = "swarm", operation_id = "pause_vm", security(("bearer" = ["swarm:write"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    request_body(content = inline(Option<PauseRequest>), example = json!({"to": "memory"})),
    responses(
        (status = 200, description = "The record", body = Vm),
        PauseRefused,
    )
)]
async fn pause(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    object: Object,
) -> Answer<Vm> {
    let vm = path.vm()?;
    let to = parse_pause(object)?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    call.audit.set_resource(vm);
    Ok(Json(swarm.pause(&caller.account.id, vm, to, call.id.as_str()).await?))
}

/// Resume a VM
///
/// Starts the processors of a paused VM and sets its clock, which stood still. Its processes go on where they were. A VM on
/// disk is restored with its id, name, address, files and processes, under a new process id. A VM that runs stays as it is.
///
/// After an update of the server, of QEMU or of the processor, a VM on disk may not be able to continue, which is the error
/// `template_not_ready`; `template_damaged` means that a file of it is. With `memory: false` it then starts again from its disk
/// alone: it boots, which takes some seconds, with its id, name, address and files. Its processes, the content of `/run`
/// and `/dev/shm`, and the environment variables of its boot are gone; a command of the boot counts as ended.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/resume", tag = "swarm", operation_id = "resume_vm",
    security(("bearer" = ["swarm:write"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    request_body(content = inline(Option<ResumeRequest>), example = json!({"memory": true})),
    responses(
        (status = 200, description = "The record", body = Vm),
        ResumeRefused,
    )
)]
async fn resume(
    State(state): State<SwarmState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    object: Object,
) -> Answer<Vm> {
    let vm = path.vm()?;
    let memory = parse_resume(object)?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    call.audit.set_resource(vm);
    let (account, request_id) = (&caller.account, call.id.as_str());
    Ok(Json(if memory {
        swarm.resume(&account.id, &account.limits, vm, request_id).await?
    } else {
        swarm.resume_without_memory(&account.id, &account.limits, vm, request_id).await?
    }))
}

/// Read a VM's console
///
/// Returns the last part of its serial log. After a restart of the server, the log only has later output.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}/console", tag = "swarm", operation_id = "console",
    security(("bearer" = ["swarm:read"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    responses(
        (status = 200, description = "The log", body = Console),
        VmRefused,
    )
)]
async fn console(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    path: VmPath,
    _: Query<NoParameters>,
) -> Answer<Console> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    Ok(Json(swarm.console(&caller.account.id, vm).await?))
}

/// Read a VM's connections
///
/// Returns what the VM may connect to outside, its open connections and bytes, and the last 100 tries to connect or to look
/// up a name, with the reasons of refusals.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}/egress", tag = "swarm", operation_id = "vm_egress",
    security(("bearer" = ["swarm:read"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    responses(
        (status = 200, description = "The policy, the counters and the tries", body = EgressReport),
        VmmRefused,
    )
)]
async fn egress(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    path: VmPath,
    _: Query<NoParameters>,
) -> Answer<EgressReport> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    Ok(Json(swarm.egress(&caller.account.id, vm).await?))
}

/// Read a VM's metrics
///
/// Returns what the VM uses of processors, memory, disk and network now, with the limits. `GET /api/swarm/vm/{pid}` has a
/// sample of the last second in `usage`.
#[utoipa::path(
    get, path = "/api/swarm/vm/{pid}/metrics", tag = "swarm", operation_id = "vm_metrics",
    security(("bearer" = ["swarm:read"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    responses(
        (status = 200, description = "The metrics", body = VmMetrics),
        VmmRefused,
    )
)]
async fn vm_metrics(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    path: VmPath,
    _: Query<NoParameters>,
) -> Answer<VmMetrics> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    Ok(Json(swarm.vm_metrics(&caller.account.id, vm).await?))
}
