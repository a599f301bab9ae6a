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
    metrics::{Collector, Format},
};

pub(crate) fn routes(collector: Collector) -> Routes {
    vec![routes!(metrics).with_state(collector)]
}

/// Read metrics
///
/// Returns Prometheus metrics: OpenMetrics 1.0 if `Accept` names it, or else the text format 0.0.4. Keys of the account
/// `default` see the metrics of the whole server, with tickets labelled by account name. Keys of other accounts, and
/// keys that are bound to a VM, only see the VMs, tickets and quotas of their own account, because requests, boots and
/// the pool would reveal the activity of others. A separate listener on loopback (`--metrics-listen`) serves the
/// metrics of the whole server without a key.
#[utoipa::path(
    get, path = "/metrics", tag = "metrics", operation_id = "metrics", security(("bearer" = ["metrics:read"])),
    responses((status = 200, description = "The metrics, one sample per line", content(
        (String = "text/plain", example = "# HELP skep_vms Live VMs, by state.\n# TYPE skep_vms gauge\n\
            skep_vms{state=\"running\"} 3\nskep_vms{state=\"paused\"} 0\n"),
        (String = "application/openmetrics-text", example = "# HELP skep_vms Live VMs, by state.\n\
            # TYPE skep_vms gauge\nskep_vms{state=\"running\"} 3\nskep_vms{state=\"paused\"} 0\n# EOF\n"),
    )))
)]
async fn metrics(
    State(collector): State<Collector>,
    caller: Caller<MetricsRead>,
    _: Query<NoParameters>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let format = Format::negotiate(&headers);
    let sees_all = caller.account.name == DEFAULT_ACCOUNT && caller.key.vm.is_none();
    let text = if sees_all {
        collector.encode_server(format).await?
    } else {
        let vms = match collector.vms.swarm_now() {
            Ok(swarm) => swarm.status(&caller.account.id).await?.vms,
            Err(_) => Vec::new(),
        };
        let figures = collector.store.ticket_metrics(Some(caller.account.id)).await?;
        Collector::encode_account(&vms, figures, &caller.account.limits, format)?
    };
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}
