//! `POST /api/admin/restart`.

use axum::extract::State;
use http::StatusCode;
use skep_api::admin::Restarting;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    body::NoBody,
    error::Refusal,
    extract::{Caller, NoParameters, Query, ServerAdmin},
    json::Json,
    openapi::refusals::RestartRefused,
    restart::Restart,
};

pub(crate) fn routes(restart: Restart) -> Routes {
    vec![routes!(restart_server).with_state(restart)]
}

/// Restart the server
///
/// Reads the settings again and starts a new server process with them. Once the new one is ready it takes over, and the
/// old one exits after it has answered its open requests. No connection is refused meanwhile, and VMs keep running; a
/// call about VMs may wait until the old process is gone. Settings that cannot start a server, or that need a stop and
/// a start (the listen address, the data directory, the user, the resources of VMs), are refused with 409, and this
/// server keeps running. `uptime` starts again. A request during another restart joins it: it gets the same outcome,
/// and the settings are not read again. Commands on the server that run for more than 30 more seconds end with the old
/// process; commands in VMs keep running.
#[utoipa::path(
    post, path = "/api/admin/restart", tag = "server", operation_id = "restart", security(("bearer" = ["server:admin"])),
    responses(
        (status = 202, description = "The new server has taken over", body = Restarting,
         example = json!({"restarting": true})),
        RestartRefused,
    )
)]
async fn restart_server(
    State(restart): State<Restart>,
    _: Caller<ServerAdmin>,
    _: Query<NoParameters>,
    _: NoBody,
) -> Result<(StatusCode, Json<Restarting>), Refusal> {
    restart().await?;
    Ok((StatusCode::ACCEPTED, Json(Restarting { restarting: true })))
}
