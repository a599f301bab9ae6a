//! `GET /api/vms`: the VMs of an account in pages, those that ended lately too.

use std::sync::Arc;

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, VmId,
    swarm::{Vm, VmList, VmState},
};
use skep_store::{ListVms, Store, VmPage, VmRecord, VmsOf};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes, page};
use crate::extract::{Caller, Query, SwarmRead};

/// The routes of this file.
pub(crate) fn routes(store: Arc<dyn Store>) -> Routes {
    vec![routes!(list).with_state(store)]
}

/// Which VMs, and the page of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// `running`, `paused` or `ended`; all that live unless given.
    #[param(inline, value_type = Option<VmState>)]
    state: Option<String>,
    /// VMs on the page, 1 to 1,000; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(inline, value_type = Option<VmId>)]
    cursor: Option<String>,
}

/// List VMs
///
/// The account's VMs that live, the youngest first; with `state=ended` those that ended, the last to end first, with
/// `ended_at` and `reason` (`deleted`, `cleanup`, `expired`, `poweroff`, `crashed`, `out_of_memory`, `lost`, `failed`). Their
/// records are kept for 30 days, 100,000 on the whole server at most. A VM that ended is found in this list only: its `pid`
/// may be another VM's by now.
#[utoipa::path(
    get, path = "/api/vms", tag = "swarm", operation_id = "list_vms", params(Wanted),
    security(("bearer" = ["swarm:read"])),
    responses((status = 200, description = "A page of VMs", body = VmList))
)]
async fn list(
    State(store): State<Arc<dyn Store>>,
    caller: Caller<SwarmRead>,
    Query(wanted): Query<Wanted>,
) -> Answer<VmList> {
    let (limit, after) = page::check::<VmId>(wanted.limit, wanted.cursor.as_deref())?;
    let which = match state(wanted.state.as_deref())? {
        // No VM can be paused yet.
        Some(VmState::Paused) => return Ok(Json(VmList { vms: Vec::new(), next_cursor: None })),
        Some(VmState::Ended) => VmsOf::Ended,
        Some(VmState::Running) | None => VmsOf::Living,
    };
    let query = ListVms { account: caller.account.id, which, limit, after };
    let VmPage { vms, next } = store.list_vms(query).await?;
    let now = Timestamp::now();
    Ok(Json(VmList {
        vms: vms.into_iter().map(|record| shown(record, now)).collect(),
        next_cursor: next.map(|vm| vm.to_string()),
    }))
}

fn state(word: Option<&str>) -> Result<Option<VmState>, Failure> {
    match word {
        None => Ok(None),
        Some("running") => Ok(Some(VmState::Running)),
        Some("paused") => Ok(Some(VmState::Paused)),
        Some("ended") => Ok(Some(VmState::Ended)),
        Some(other) => {
            let message = format!("`state` is {other:?}; it must be `running`, `paused` or `ended`");
            Err(Failure::new(ErrorCode::InvalidValue, message))
        }
    }
}

fn shown(record: VmRecord, now: Timestamp) -> Vm {
    let VmRecord { vm, end, .. } = record;
    let until = end.map_or(now, |end| end.at);
    Vm {
        pid: vm.pid,
        id: vm.id,
        ip: vm.ip,
        // The wall clock may have been set back meanwhile.
        uptime: until.duration_since(vm.started_at).as_secs_f64().max(0.0),
        state: if end.is_some() { VmState::Ended } else { VmState::Running },
        template: vm.template,
        started_at: vm.started_at,
        expires_at: vm.expires_at,
        vcpus: vm.vcpus,
        memory_mb: vm.memory_mb,
        metadata: vm.metadata,
        ticket: vm.ticket,
        exec_id: vm.exec_id,
        boot: vm.boot,
        ended_at: end.map(|end| end.at),
        reason: end.map(|end| end.reason),
    }
}
