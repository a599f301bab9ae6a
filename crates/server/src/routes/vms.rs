//! `GET /api/vms`: the VMs of an account in pages, those that ended lately too.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, VmId,
    swarm::{Vm, VmList, VmState},
};
use skep_store::{ListVms, Store, VmFilter, VmPage, VmRecord, VmsOf};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes, page};
use crate::{
    extract::{Caller, Keyed, KeyedQuery, SwarmRead},
    json::Json,
};

/// What stands before a metadata key in the query.
const METADATA: &str = "metadata.";
/// Metadata keys that one filter may name: each is looked for in every record.
const MOST_METADATA: usize = 16;

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
    /// Those with this name: one at the most of those that live.
    #[param(example = "builder")]
    name: Option<String>,
    /// Those of this template.
    #[param(example = "base")]
    template: Option<String>,
    /// VMs on the page, 1 to 1,000; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before, with the same filter.
    #[param(pattern = "^[0-9a-f]{16}\\.vm_.+$", example = "5c1f9d2ab3e40717.vm_01jv0000000000000000000000")]
    cursor: Option<String>,
}

impl Keyed for Wanted {
    const PREFIX: &'static str = METADATA;
}

/// List VMs
///
/// The account's VMs that live, the youngest first; with `state=ended` those that ended, the last to end first, with
/// `ended_at` and `reason` (`deleted`, `cleanup`, `expired`, `poweroff`, `crashed`, `out_of_memory`, `lost`, `failed`,
/// `ticket_ended`). `metadata.KEY=VALUE` keeps those whose metadata has VALUE under KEY, a string as it is and a number, `true`, `false` or `null` as JSON writes
/// it; it may be given for up to 16 keys. Their
/// records are kept for 30 days, 100,000 on the whole server at most. A VM that ended is found in this list only: its `pid`
/// may be another VM's by now.
#[utoipa::path(
    get, path = "/api/vms", tag = "swarm", operation_id = "list_vms",
    params(Wanted, ("metadata.KEY" = Option<String>, Query, description = "Those whose metadata has this value under KEY")),
    security(("bearer" = ["swarm:read"])),
    responses((status = 200, description = "A page of VMs", body = VmList))
)]
async fn list(
    State(store): State<Arc<dyn Store>>,
    caller: Caller<SwarmRead>,
    KeyedQuery(wanted, metadata): KeyedQuery<Wanted>,
) -> Answer<VmList> {
    let filter = VmFilter { name: wanted.name, template: wanted.template, metadata: keys(metadata)? };
    let state = state(wanted.state.as_deref())?;
    let stamp = page::stamp(&format!("{} {state:?} {filter:?}", caller.account.id));
    let place = wanted.cursor.as_deref().map(|cursor| page::place(cursor, &stamp)).transpose()?;
    let (limit, after) = page::check::<VmId>(wanted.limit, place)?;
    let which = match state {
        // No VM can be paused yet.
        Some(VmState::Paused) => return Ok(Json(VmList { vms: Vec::new(), next_cursor: None })),
        Some(VmState::Ended) => VmsOf::Ended,
        Some(VmState::Running) | None => VmsOf::Living,
    };
    let query = ListVms { account: caller.account.id, which, filter, limit, after };
    let VmPage { vms, next } = store.list_vms(query).await?;
    let now = Timestamp::now();
    Ok(Json(VmList {
        vms: vms.into_iter().map(|record| shown(record, now)).collect(),
        next_cursor: next.map(|vm| page::cursor(&stamp, vm)),
    }))
}

/// The metadata that a filter asks for, by key.
fn keys(parameters: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Failure> {
    let invalid = |message: String| Err(Failure::new(ErrorCode::InvalidValue, message));
    if parameters.len() > MOST_METADATA {
        let given = parameters.len();
        return invalid(format!("{given} `{METADATA}KEY` are given; give at most {MOST_METADATA}"));
    }
    if parameters.contains_key("") {
        return invalid(format!("`{METADATA}` has no key behind it; give `{METADATA}KEY=VALUE`"));
    }
    Ok(parameters)
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
        name: vm.name,
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
