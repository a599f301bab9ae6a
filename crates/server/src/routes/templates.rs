//! `/api/templates`: lists, reads, creates and deletes templates.

mod create;
mod snapshot;

use std::sync::Arc;

use axum::extract::State;
use skep_api::{
    TemplateId,
    templates::{DeletedTemplate, Template, TemplateList},
};
use skep_store::{DeleteTemplate, ListTemplates, TemplateStore};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes, page::Page};
use crate::{
    extract::{Caller, NoParameters, Query, RequestInfo, Segment, SwarmRead, SwarmWrite},
    json::Json,
    openapi::refusals::{DeleteTemplateRefused, TemplateRefused},
    swarm_handle::SwarmHandle,
    template_builds::TemplateBuilds,
    tickets::InProgressRequests,
};

#[derive(Clone)]
pub(crate) struct TemplatesState {
    pub store: Arc<dyn TemplateStore>,
    /// The swarm, which builds templates, or the reason why there is none.
    pub vms: SwarmHandle,
    pub builds: TemplateBuilds,
    /// The creations with an idempotency key that are in progress.
    pub in_progress: InProgressRequests,
}

pub(crate) fn routes(state: TemplatesState) -> Routes {
    vec![
        routes!(list, create::create).with_state(state.clone()),
        routes!(snapshot::snapshot).with_state(state.clone()),
        routes!(read, delete).with_state(state),
    ]
}

/// List templates
///
/// The templates that the account can boot: its own ones, `base` and public ones; `base` first, then the oldest first.
#[utoipa::path(
    get, path = "/api/templates", tag = "templates", operation_id = "list_templates", params(Page<TemplateId>),
    security(("bearer" = ["swarm:read"])),
    responses((status = 200, description = "A page of templates", body = TemplateList))
)]
async fn list(
    State(state): State<TemplatesState>,
    caller: Caller<SwarmRead>,
    Query(page): Query<Page<TemplateId>>,
) -> Answer<TemplateList> {
    let (limit, after) = page.read()?;
    let page = state.store.list_templates(ListTemplates { account: caller.account.id, limit, after }).await?;
    let next_cursor = page.next.map(|id| id.to_string());
    Ok(Json(TemplateList { templates: page.templates, next_cursor }))
}

/// Read a template
///
/// Returns its record, with the progress of its build.
#[utoipa::path(
    get, path = "/api/templates/{name}", tag = "templates", operation_id = "read_template",
    security(("bearer" = ["swarm:read"])),
    params(("name" = String, Path, description = "The template's name or id", example = "base")),
    responses(
        (status = 200, description = "The record", body = Template),
        TemplateRefused,
    )
)]
async fn read(
    State(state): State<TemplatesState>,
    caller: Caller<SwarmRead>,
    Segment(name): Segment,
    _: Query<NoParameters>,
) -> Answer<Template> {
    Ok(Json(state.store.template(caller.account.id, &name).await?))
}

/// Delete a template
///
/// Ends its build, and removes its files. A template is needed, and not deleted, while VMs of it run or are paused, and
/// while other templates are made from it.
#[utoipa::path(
    delete, path = "/api/templates/{name}", tag = "templates", operation_id = "delete_template",
    security(("bearer" = ["swarm:write"])),
    params(("name" = String, Path, description = "The template's name or id", example = "big")),
    responses(
        (status = 200, description = "It was deleted", body = DeletedTemplate),
        DeleteTemplateRefused,
    )
)]
async fn delete(
    State(state): State<TemplatesState>,
    caller: Caller<SwarmWrite>,
    Segment(name): Segment,
    _: Query<NoParameters>,
    call: RequestInfo,
) -> Answer<DeletedTemplate> {
    let account = caller.account.id;
    let id = state.store.template(account, &name).await?.id;
    call.audit.set_resource(id);
    let request_id = Some(call.id.as_str().to_owned());
    let deletion = DeleteTemplate { account, id, at: call.arrival.wall, request_id };
    let deleted = state.store.delete_template(deletion).await?;
    // Where the files cannot be removed now, the comparison of records and files removes them later.
    if let Ok(swarm) = state.vms.swarm_now()
        && let Err(error) = swarm.remove_template(id).await
    {
        tracing::warn!(template = %id, %error, "the files of the deleted template {id} are not removed yet: {error}");
    }
    state.builds.notify();
    Ok(Json(DeletedTemplate { name: deleted.name, id, deleted: true }))
}
