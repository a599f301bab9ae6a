//! `/api/swarm`: status, boot and cleanup of the swarm, and operations on one VM.

mod pause;
mod vm;

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use skep_api::{
    AccountId, Scope,
    egress::EgressPolicy,
    swarm::{BootAnswer, BootRequest, Capacity, CleanupAnswer, SwarmStatus},
};
use skep_store::{AccountDisk, IdempotentRequest, Store};
use skep_swarm::{BootFrom, BootSpec, WorkspaceFiles};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Answer, Routes,
    boot::{BootDefaults, TicketWork, parse_boot, parse_fork},
    boot_work::Booter,
    tickets::replayable_response,
};
use crate::{
    body::{NoBody, Object},
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmRead, SwarmWrite, VM_REFERENCE, VmPath},
    json::Json,
    openapi::refusals::{BootRefused, CleanupRefused, ForkRefused},
    swarm_handle::SwarmHandle,
    tickets::{IDEMPOTENCY_KEY_DESCRIPTION, InProgressRequests, idempotency_key},
    workspace_disk::WorkspaceDisk,
};

#[derive(Clone)]
pub(crate) struct SwarmState {
    /// The swarm, or the reason why there is none.
    pub vms: SwarmHandle,
    pub workspace_disk: WorkspaceDisk,
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
        routes!(vm::vm, vm::change_vm, vm::end).with_state(state.clone()),
        routes!(fork).with_state(state.clone()),
        routes!(pause::pause).with_state(state.clone()),
        routes!(pause::resume).with_state(state.clone()),
        routes!(vm::console).with_state(state.clone()),
        routes!(vm::vm_metrics).with_state(state.clone()),
        routes!(vm::egress).with_state(state),
    ]
}

/// Read the swarm's status
///
/// Returns the account's VMs that run or are paused in memory (at most 1,000), the number of all of its VMs, the capacity of the
/// machine, and the engine in use (null if this server runs no VMs). `GET /api/vms` lists all VMs in pages, those on disk too.
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
            disk_used_mb: disk_used_without_vms(&state, caller.account.id).await?.div_ceil(1 << 20),
            pool: Default::default(),
            capacity: Capacity::default(),
            engine: None,
        })),
    }
}

/// What the account occupies on the disk of a server that runs no VMs, in bytes.
async fn disk_used_without_vms(state: &SwarmState, account: AccountId) -> Result<u64, Refusal> {
    let AccountDisk { limits, templates_bytes } = state.store.account_disk(account).await?;
    let files = match limits.max_disk_mb {
        Some(_) => state.workspace_disk.used_bytes(account).await,
        None => 0,
    };
    Ok(templates_bytes + files)
}

/// Boot VMs
///
/// Restores VMs from a template's snapshot: all of them or none. When it answers, each takes commands under its own
/// identity. No body, an empty one and `{}` mean one VM. A `name` needs a `count` of 1. With `ticket`, which also needs
/// the scope `tickets:write`, the ticket is claimed first; a failed boot releases it, which does not count as a failed
/// attempt. The VM ends with its attempt, unless `keep_vm` is true. With `command`, which also needs the scope
/// `swarm:exec`, that command is started in each VM and runs independently of the caller. Without `egress`, VMs of a snapshot
/// have the policy that its VM had, and others that of the account.
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
    audit_egress(call, &order.attributes.egress);
    let swarm = state.vms.swarm().await?.clone();
    let in_progress = state.in_progress.begin(caller.account.id, once.as_ref())?;
    order.once = once;
    let booter = Booter::new(Arc::clone(&state.store), caller, call);
    let booted = booter.boot(swarm, order, work, in_progress).await?;
    if let Some(first) = booted.answer.vms.first() {
        // Copies may have the policy of their parent.
        audit_egress(call, &first.egress);
    }
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

fn audit_egress(call: &RequestInfo, policy: &EgressPolicy) {
    call.audit.set_egress(Some(policy).filter(|policy| **policy != EgressPolicy::None));
}

/// Fork a VM
///
/// Copies a running VM as it is at this moment, and boots the copies: all of them or none. A copy begins with the files, the
/// memory and the processes of the VM, under an identity of its own: address, host name, machine id, kernel random numbers and
/// clock. Its programs continue when it has all of that. Commands in progress go on in the copies, under their ids. Metadata
/// and environment variables are inherited, and so is `egress`, if the body has none; ticket, key, name and time to live are not,
/// and neither are the variables and files that the VM has because of its ticket. The body is that of a boot, without `template`
/// and `memory`. The VM stands still for a moment and runs on.
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
