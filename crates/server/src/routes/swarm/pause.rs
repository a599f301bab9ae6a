//! `/api/swarm/vm/{pid}/pause` and `resume`.

use axum::extract::State;
use skep_api::swarm::{PauseRequest, ResumeRequest, Vm};

use super::SwarmState;
use crate::{
    body::Object,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmWrite, VM_REFERENCE, VmPath},
    json::Json,
    openapi::refusals::{PauseRefused, ResumeRefused},
    routes::{
        Answer,
        boot::{parse_pause, parse_resume},
    },
};

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
pub(super) async fn pause(
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
pub(super) async fn resume(
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
