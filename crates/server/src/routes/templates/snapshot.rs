//! Takes a snapshot of a VM: records the template, lets the swarm store the VM, and records the outcome.

use axum::extract::State;
use http::StatusCode;
use jiff::Timestamp;
use skep_api::{
    TemplateId,
    swarm::{SnapshotRequest, Vm},
    templates::{GuestSize, Template, TemplateSource},
};
use skep_store::{CreateTemplate, DeleteTemplate, RecordSnapshot};
use skep_swarm::{AwakeVm, DiskReservation, Error, Swarm};

use super::{
    TemplatesState,
    create::{MAX_BUILDING, MAX_TEMPLATES, check_description},
};
use crate::{
    body::Object,
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmWrite, VM_REFERENCE, VmPath},
    json::Json,
    openapi::refusals::SnapshotRefused,
    template_builds::to_store,
};

/// Take a snapshot of a VM
///
/// Stores a running VM as a template: its files, memory and processes as they are at this moment. The VM stands still
/// meanwhile and runs on. VMs that are booted from the template continue from there, each under an identity of its own:
/// address, host name, machine id, kernel random numbers and clock. They have the `egress` that the VM has now, if their boot
/// gives none. Environment variables of the VM are not passed on, but what programs hold in memory is. Only what differs from the
/// VM's own template takes space.
#[utoipa::path(
    post, path = "/api/swarm/vm/{pid}/snapshot", tag = "templates", operation_id = "snapshot_vm",
    security(("bearer" = ["swarm:write"])),
    params(("pid" = String, Path, description = VM_REFERENCE, example = "4242")),
    request_body(content = SnapshotRequest, example = json!({"name": "installed"})),
    responses(
        (status = 201, description = "The record of the template, from which VMs can be booted", body = Template),
        SnapshotRefused,
    )
)]
pub(super) async fn snapshot(
    State(state): State<TemplatesState>,
    caller: Caller<SwarmWrite>,
    path: VmPath,
    _: Query<NoParameters>,
    call: RequestInfo,
    object: Object,
) -> Result<(StatusCode, Json<Template>), Refusal> {
    let vm = path.vm()?;
    let request: SnapshotRequest = object.into_request()?;
    request.description.as_deref().map_or(Ok(()), check_description)?;
    let (swarm, vm) = state.vms.vm_for(&caller, vm).await?;
    let awake = swarm.awake(&caller.account.id, &caller.account.limits, vm).await?;
    let vm = awake.record();
    let parent = swarm.template_of(&caller.account.id, vm.id)?.to_string();
    let parent = state.store.template(caller.account.id, &parent).await?;
    let disk = swarm.reserve_snapshot(&caller.account.id, vm.id).await?;
    let creation = CreateTemplate {
        id: TemplateId::generate(),
        account: caller.account.id,
        name: request.name,
        source: TemplateSource::Vm,
        parent: parent.id,
        size: GuestSize { memory_mb: vm.memory_mb, vcpus: vm.vcpus, disk_mb: parent.disk_mb },
        egress: Some(vm.egress),
        description: request.description,
        max_templates: MAX_TEMPLATES,
        max_building: MAX_BUILDING,
        at: call.arrival.wall,
        request_id: Some(call.id.as_str().to_owned()),
        once: None,
    };
    call.audit.set_resource(creation.id);
    // In a task of its own, so that a caller that disconnects leaves no record without files.
    let storing = tokio::spawn(record_and_store(state, swarm, awake, creation, disk));
    let stored =
        storing.await.map_err(|error| Refusal::internal(format!("a snapshot broke off: {error}")))??;
    Ok((StatusCode::CREATED, Json(stored)))
}

async fn record_and_store(
    state: TemplatesState,
    swarm: Swarm,
    awake: AwakeVm,
    creation: CreateTemplate,
    mut disk: DiskReservation,
) -> Result<Template, Error> {
    let _under_way = state.builds.begin(creation.id);
    let (account, template, request_id) = (creation.account, creation.id, creation.request_id.clone());
    state.store.create_template(creation).await?;
    let deletion =
        DeleteTemplate { account, id: template, at: Timestamp::now(), request_id: request_id.clone() };
    let Vm { id: vm, pid, .. } = awake.record();
    let stored = match swarm.snapshot(awake, template).await {
        Ok(stored) => disk.settle(&stored).await.map(|()| stored),
        Err(error) => Err(error),
    };
    match stored {
        Ok(stored) => {
            let at = Timestamp::now();
            let command = RecordSnapshot {
                account,
                template,
                size_bytes: stored.size_bytes,
                own_bytes: stored.own_bytes,
                status: to_store(stored),
                vm,
                pid: pid.unwrap_or_default(),
                at,
                request_id,
            };
            match state.store.record_snapshot(command).await {
                Ok(recorded) => Ok(recorded),
                Err(error) => {
                    undo(&state, &swarm, deletion).await;
                    Err(error.into())
                }
            }
        }
        Err(error) => {
            undo(&state, &swarm, deletion).await;
            Err(error)
        }
    }
}

/// Removes what a snapshot left that failed. What cannot be removed now, the comparison of records and files finds.
async fn undo(state: &TemplatesState, swarm: &Swarm, deletion: DeleteTemplate) {
    let template = deletion.id;
    if let Err(error) = state.store.delete_template(deletion).await {
        tracing::warn!(%template, %error, "the record of the snapshot {template} is not deleted: {error}");
    }
    if let Err(error) = swarm.remove_template(template).await {
        tracing::warn!(%template, %error, "the files of the snapshot {template} are not removed yet: {error}");
    }
}
