//! Creates a template: parses the request, checks the size, records the template and lets the keeper build it.

use std::{num::NonZero, thread::available_parallelism};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, TemplateId,
    keys::Limits,
    templates::{
        CreateTemplate, GuestSize, MAX_DISK_MB, MIN_MEMORY_MB, Template, TemplateName, TemplateSource,
    },
};
use skep_store::{Answered, RecordTemplateState, TemplateStatus};
use skep_swarm::{DiskReservation, Swarm, require_ready};

use super::TemplatesState;
use crate::{
    body::Object,
    error::Refusal,
    extract::{Caller, NoParameters, Query, RequestInfo, SwarmWrite},
    json::Json,
    openapi::refusals::CreateTemplateRefused,
    routes::tickets::replayable_response,
    tickets::{IDEMPOTENCY_KEY_DESCRIPTION, InProgressGuard, idempotency_key},
};

/// The most templates of one account, and those of them that are being built.
pub(super) const MAX_TEMPLATES: u32 = 64;
pub(super) const MAX_BUILDING: u32 = 2;
/// The longest description, in characters.
const MAX_DESCRIPTION_CHARS: usize = 500;

/// Create a template
///
/// Builds a template with the disk of another one and a size of its own: a guest is booted from that disk with this
/// size, and saved. The answer does not wait for that: the record's `state` becomes `ready` or `failed`, of which
/// `template.ready` and `template.failed` tell. An account has up to 64 templates, of which 2 may be in the state
/// `building`.
#[utoipa::path(
    post, path = "/api/templates", tag = "templates", operation_id = "create_template",
    security(("bearer" = ["swarm:write"])),
    params(("Idempotency-Key" = Option<String>, Header, description = IDEMPOTENCY_KEY_DESCRIPTION)),
    request_body(content = CreateTemplate, example = json!({
        "name": "big", "from": "base", "memory_mb": 4096, "vcpus": 4, "disk_mb": 20_480
    })),
    responses(
        (status = 202, description = "The record of the template, which is being built", body = Template, headers(
            ("Idempotent-Replayed" = Option<String>, description = "`true` if this is the answer to an earlier request")
        )),
        CreateTemplateRefused,
    )
)]
pub(super) async fn create(
    State(state): State<TemplatesState>,
    caller: Caller<SwarmWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    headers: HeaderMap,
    object: Object,
) -> Result<Response, Refusal> {
    let account = &caller.account;
    let once = idempotency_key(&headers, "/api/templates", &object)?;
    // The size is checked as far as possible even where no VM can run.
    let swarm = state.vms.swarm().await;
    let most_memory = swarm.as_ref().map_or(MAX_DISK_MB, Swarm::max_guest_memory_mb);
    let order = parse(object, most_memory)?;
    let swarm = swarm?;
    let in_progress = state.in_progress.begin(account.id, once.as_ref())?;
    if let Some(once) = once.clone()
        && let Some(answer) = state.store.stored_template_answer(account.id, once, Timestamp::now()).await?
    {
        return Ok(accepted(Answered { answer, replayed: true }));
    }
    let parent = state.store.template(account.id, &order.from).await?;
    require_ready(&parent)?;
    let size = order.size(&parent)?;
    check_quota(size, &account.limits)?;
    let disk = swarm.reserve_template(&account.id, size.memory_mb).await?;
    let creation = skep_store::CreateTemplate {
        id: TemplateId::generate(),
        account: account.id,
        name: order.name,
        source: TemplateSource::Setup,
        parent: parent.id,
        size,
        egress: None,
        description: order.description,
        max_templates: MAX_TEMPLATES,
        max_building: MAX_BUILDING,
        at: call.arrival.wall,
        request_id: Some(call.id.as_str().to_owned()),
        once,
    };
    call.audit.set_resource(creation.id);
    // In a task of its own, so that a caller that disconnects leaves no record without a build.
    let building =
        tokio::spawn(async move { record_and_build(state, swarm, creation, (in_progress, disk)).await });
    let made =
        building.await.map_err(|error| Refusal::internal(format!("a creation broke off: {error}")))??;
    Ok(accepted(Answered { answer: made, replayed: false }))
}

fn accepted(answered: Answered<Template>) -> Response {
    replayable_response(StatusCode::ACCEPTED, answered, |record| Json(record).into_response())
}

/// Records the template and hands its build to the keeper. A refusal of the keeper becomes the outcome of the build.
async fn record_and_build(
    state: TemplatesState,
    swarm: Swarm,
    creation: skep_store::CreateTemplate,
    guards: (InProgressGuard, DiskReservation),
) -> Result<Template, skep_store::Error> {
    let _under_way = (state.builds.begin(creation.id), guards);
    let (id, parent, size) = (creation.id, creation.parent, creation.size);
    let made = state.store.create_template(creation).await?;
    if let Err(failure) = swarm.build_template(id, parent, size).await {
        tracing::warn!(template = %id, %failure, "the template {id} is not built: {failure}");
        let status = TemplateStatus::Failed { reason: failure.message };
        state
            .store
            .record_template_state(RecordTemplateState { template: id, status, at: Timestamp::now() })
            .await?;
    }
    Ok(made)
}

/// A parsed request.
#[derive(Debug)]
struct Order {
    name: TemplateName,
    from: String,
    description: Option<String>,
    memory_mb: Option<u64>,
    vcpus: Option<u32>,
    disk_mb: Option<u64>,
}

/// The fields of a [`CreateTemplate`] that are not checked as numbers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherFields {
    name: TemplateName,
    from: String,
    #[serde(default)]
    description: Option<String>,
}

fn parse(mut object: Object, most_memory: u64) -> Result<Order, Failure> {
    let of_server = " (the memory of this server for VMs)";
    let memory_mb = object.take_integer("memory_mb", MIN_MEMORY_MB..=most_memory, of_server)?;
    let processors = available_parallelism().map_or(1, NonZero::get) as u64;
    let vcpus = object.take_integer("vcpus", 1..=processors, " (the processors of this server)")?;
    let disk_mb = object.take_integer("disk_mb", 1..=MAX_DISK_MB, "")?;
    let OtherFields { name, from, description } = object.into_request()?;
    if let Some(text) = &description {
        check_description(text)?;
    }
    // In range, as `take_integer` checked.
    let vcpus = vcpus.map(|vcpus| u32::try_from(vcpus).unwrap_or(1));
    Ok(Order { name, from, description, memory_mb, vcpus, disk_mb })
}

impl Order {
    /// The size of the template, which has that of its parent where the request names none.
    fn size(&self, parent: &Template) -> Result<GuestSize, Failure> {
        let disk_mb = self.disk_mb.unwrap_or(parent.disk_mb);
        if disk_mb < parent.disk_mb {
            // The name of the parent is not quoted: clients replace quoted fields, and it may be that of one.
            return Err(invalid(format!(
                "`disk_mb` is {disk_mb}, and the template in `from` has {} MiB; give at least that, because files may \
                 lie anywhere on its disk",
                parent.disk_mb
            )));
        }
        let memory_mb = self.memory_mb.unwrap_or(parent.memory_mb);
        Ok(GuestSize { memory_mb, vcpus: self.vcpus.unwrap_or(parent.vcpus), disk_mb })
    }
}

/// Refuses a template of which the account could boot no VM.
fn check_quota(size: GuestSize, limits: &Limits) -> Result<(), Failure> {
    let Some(max) = limits.max_memory_mb.filter(|max| size.memory_mb > *max) else { return Ok(()) };
    let message = format!(
        "a VM of this template has {} MiB, and this account may have {max} MiB in all; choose a smaller `memory_mb`",
        size.memory_mb
    );
    Err(Failure::new(ErrorCode::QuotaExceeded, message))
}

pub(super) fn check_description(text: &str) -> Result<(), Failure> {
    let length = text.chars().count();
    if length > MAX_DESCRIPTION_CHARS || text.chars().any(char::is_control) {
        return Err(invalid(format!(
            "`description` has {length} characters; give one line of at most {MAX_DESCRIPTION_CHARS}"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_up_to_64_templates_of_which_2_may_be_being_built() {
        assert_eq!((MAX_TEMPLATES, MAX_BUILDING), (64, 2));
    }
}
