//! The server itself: `POST /api/admin/restart`.

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

/// The routes of this file.
pub(crate) fn routes(restart: Restart) -> Routes {
    vec![routes!(restart_server).with_state(restart)]
}

/// Restart the server
///
/// Reads the settings again and starts another server by them. When that one is ready, it answers, and this one ends as soon
/// as it has answered what is under way. No connection is refused meanwhile, and VMs live on; a call about VMs may wait
/// until the old server is gone. Settings that cannot start a server, or that take a stop and a start to change (where it
/// listens, where its data lies, whom it runs as, what VMs may use), are 409, and this server serves on. `uptime` starts
/// again. A restart that is asked for while another one is under way is that one: it has its outcome, and the settings that
/// were read for it. Commands on the server that run longer than the old server waits, 30 seconds, end with it; those in VMs
/// live on.
#[utoipa::path(
    post, path = "/api/admin/restart", tag = "server", operation_id = "restart", security(("bearer" = ["server:admin"])),
    responses(
        (status = 202, description = "Another server serves, and this one ends", body = Restarting,
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
