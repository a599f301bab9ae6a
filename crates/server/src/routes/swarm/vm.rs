//! `/api/swarm/vm/{pid}`: reads, changes and ends one VM, and reads its console, its connections and its metrics.

use axum::extract::State;
use skep_api::{
    VmRef,
    egress::EgressReport,
    swarm::{ChangeRequest, Console, DeleteAnswer, Vm, VmMetrics},
};

use super::SwarmState;
use crate::{
    body::Object,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmRead, SwarmWrite, VM_REFERENCE, VmPath},
    json::Json,
    openapi::refusals::{ChangeVmRefused, VmRefused, VmmRefused},
    routes::{Answer, boot::parse_change},
};

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
pub(super) async fn vm(
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
pub(super) async fn change_vm(
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
pub(super) async fn end(
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
pub(super) async fn console(
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
pub(super) async fn egress(
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
pub(super) async fn vm_metrics(
    State(state): State<SwarmState>,
    caller: Caller<SwarmRead>,
    path: VmPath,
    _: Query<NoParameters>,
) -> Answer<VmMetrics> {
    let vm = path.vm()?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    Ok(Json(swarm.vm_metrics(&caller.account.id, vm).await?))
}
