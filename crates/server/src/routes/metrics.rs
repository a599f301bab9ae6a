//! `GET /metrics`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, header::CONTENT_TYPE};
use skep_accounts::DEFAULT_ACCOUNT;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::Routes;
use crate::{
    error::Refusal,
    extract::{Caller, MetricsRead, NoParameters, Query},
    metrics::{Format, Readings},
};

/// The routes of this file.
pub(crate) fn routes(readings: Readings) -> Routes {
    vec![routes!(metrics).with_state(readings)]
}

/// Metrics
///
/// As Prometheus reads them: OpenMetrics 1.0 where `Accept` names it, else the text format 0.0.4. Keys of the account
/// `default` see those of the whole server, with the tickets of each account by the account's name. Keys of every other
/// account, and keys that are bound to a VM, see the VMs, the tickets and the quotas of their own account and nothing else:
/// requests, boots and the pool show what others do. A listener of its own on loopback (`--metrics-listen`) has those of the
/// whole server without a key.
#[utoipa::path(
    get, path = "/metrics", tag = "metrics", operation_id = "metrics", security(("bearer" = ["metrics:read"])),
    responses((status = 200, description = "The metrics, a line each", content(
        (String = "text/plain", example = "# HELP skep_vms VMs that live, by state.\n# TYPE skep_vms gauge\n\
            skep_vms{state=\"running\"} 3\nskep_vms{state=\"paused\"} 0\n"),
        (String = "application/openmetrics-text", example = "# HELP skep_vms VMs that live, by state.\n\
            # TYPE skep_vms gauge\nskep_vms{state=\"running\"} 3\nskep_vms{state=\"paused\"} 0\n# EOF\n"),
    )))
)]
async fn metrics(
    State(readings): State<Readings>,
    caller: Caller<MetricsRead>,
    _: Query<NoParameters>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let format = Format::asked_for(&headers);
    let sees_all = caller.account.name == DEFAULT_ACCOUNT && caller.key.vm.is_none();
    let text = if sees_all {
        readings.whole(format).await?
    } else {
        let vms = match readings.vms.swarm_now() {
            Ok(swarm) => swarm.status(&caller.account.id).await?.vms,
            Err(_) => Vec::new(),
        };
        let figures = readings.store.ticket_figures(Some(caller.account.id)).await?;
        Readings::of_account(&vms, figures, &caller.account.limits, format)?
    };
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}
