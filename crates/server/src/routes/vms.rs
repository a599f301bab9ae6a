//! `GET /api/vms`: lists the VMs of an account, including recently ended ones.

use std::{collections::BTreeMap, sync::Arc};

use axum::extract::State;
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, VmId,
    swarm::{PausedTo, VmList, VmState},
};
use skep_store::{ListVms, VmFilter, VmPage, VmRecord, VmSet, VmStore};
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes, page};
use crate::{
    extract::{Caller, KeyPrefix, KeyedQuery, SwarmRead},
    json::Json,
    swarm_handle::SwarmHandle,
};

/// The prefix of a metadata key in the query.
const METADATA_PREFIX: &str = "metadata.";
/// The most metadata keys of a filter. Each is looked up in every record.
const MAX_METADATA_KEYS: usize = 16;

#[derive(Clone)]
struct VmsState {
    store: Arc<dyn VmStore>,
    vms: SwarmHandle,
}

pub(crate) fn routes(store: Arc<dyn VmStore>, vms: SwarmHandle) -> Routes {
    vec![routes!(list).with_state(VmsState { store, vms })]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VmsQuery {
    /// `running`, `paused` or `ended`. Default: all that have not ended.
    #[param(inline, value_type = Option<VmState>)]
    state: Option<String>,
    /// `memory` or `disk`: paused VMs whose memory is kept there. `state` is then absent or `paused`.
    #[param(inline, value_type = Option<PausedTo>)]
    paused_to: Option<String>,
    /// VMs with this name, of which at most one has not ended.
    #[param(example = "builder")]
    name: Option<String>,
    /// VMs of this template.
    #[param(example = "base")]
    template: Option<String>,
    /// VMs on the page, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page, with the same filter.
    #[param(pattern = "^[0-9a-f]{16}\\.vm_.+$", example = "5c1f9d2ab3e40717.vm_01jv0000000000000000000000")]
    cursor: Option<String>,
}

impl KeyPrefix for VmsQuery {
    const PREFIX: &'static str = METADATA_PREFIX;
}

/// List VMs
///
/// The account's live VMs, newest first; with `state=ended` the ended ones, most recently ended first, with `ended_at`
/// and `reason` (`deleted`, `cleanup`, `expired`, `poweroff`, `crashed`, `out_of_memory`, `lost`, `failed`,
/// `ticket_ended`). `metadata.KEY=VALUE`, for up to 16 keys, selects VMs whose metadata has VALUE under KEY: a string
/// as it is; a number, `true`, `false` or `null` as in JSON. Records of ended VMs are kept for 30 days, at most 100,000
/// on the whole server. Ended VMs are only in this list, because their `pid` may belong to another VM by now.
#[utoipa::path(
    get, path = "/api/vms", tag = "swarm", operation_id = "list_vms",
    params(VmsQuery, ("metadata.KEY" = Option<String>, Query, description = "VMs whose metadata has this value under KEY")),
    security(("bearer" = ["swarm:read"])),
    responses((status = 200, description = "A page of VMs", body = VmList))
)]
async fn list(
    State(VmsState { store, vms: swarm }): State<VmsState>,
    caller: Caller<SwarmRead>,
    KeyedQuery(query, metadata): KeyedQuery<VmsQuery>,
) -> Answer<VmList> {
    let state = parse_state(query.state.as_deref())?;
    let paused_to = parse_paused_to(query.paused_to.as_deref(), state)?;
    let metadata = check_metadata(metadata)?;
    let filter = VmFilter { name: query.name, template: query.template, paused_to, metadata };
    let filter_hash = page::filter_hash(&format!("{} {state:?} {filter:?}", caller.account.id));
    let position = query.cursor.as_deref().map(|cursor| page::position(cursor, &filter_hash)).transpose()?;
    let (limit, after) = page::check::<VmId>(query.limit, position)?;
    let set = match state {
        None => VmSet::Live,
        Some(VmState::Running) => VmSet::Running,
        Some(VmState::Paused) => VmSet::Paused,
        Some(VmState::Ended) => VmSet::Ended,
    };
    let query = ListVms { account: caller.account.id, set, filter, limit, after };
    let VmPage { vms, next } = store.list_vms(query).await?;
    let now = Timestamp::now();
    // The store has only the reason of the last event. The swarm has the current state; without a swarm, no VM can be resumed.
    let swarm = swarm.swarm_now().ok();
    let shown = |record: &VmRecord| match &swarm {
        Some(swarm) => swarm.add_snapshot_state(&caller.account.id, record.to_api(now)),
        None => record.to_api(now),
    };
    Ok(Json(VmList {
        vms: vms.iter().map(shown).collect(),
        next_cursor: next.map(|vm| page::cursor(&filter_hash, vm)),
    }))
}

/// Checks the metadata of a filter, by key.
fn check_metadata(parameters: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Failure> {
    let invalid = |message: String| Err(Failure::new(ErrorCode::InvalidValue, message));
    if parameters.len() > MAX_METADATA_KEYS {
        let given = parameters.len();
        return invalid(format!(
            "{given} `{METADATA_PREFIX}KEY` are given; give at most {MAX_METADATA_KEYS}"
        ));
    }
    if parameters.contains_key("") {
        return invalid(format!(
            "`{METADATA_PREFIX}` has no key after it; give `{METADATA_PREFIX}KEY=VALUE`"
        ));
    }
    Ok(parameters)
}

fn parse_state(word: Option<&str>) -> Result<Option<VmState>, Failure> {
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

fn parse_paused_to(word: Option<&str>, state: Option<VmState>) -> Result<Option<PausedTo>, Failure> {
    let invalid = |message| Err(Failure::new(ErrorCode::InvalidValue, message));
    let place = match word {
        None => return Ok(None),
        Some("memory") => PausedTo::Memory,
        Some("disk") => PausedTo::Disk,
        Some(other) => return invalid(format!("`paused_to` is {other:?}; it must be `memory` or `disk`")),
    };
    match state {
        None | Some(VmState::Paused) => Ok(Some(place)),
        Some(VmState::Running | VmState::Ended) => invalid(format!(
            "`paused_to` is {:?}, which only paused VMs have; leave `state` out, or give `state=paused`",
            place.as_str()
        )),
    }
}
