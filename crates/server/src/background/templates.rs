//! Keeps the records of templates equal to what the keeper has, and removes files that no record needs. Records which VMs on disk
//! have memory that cannot be used too, because the keeper lists their snapshots with the templates.
//!
//! A record is created before the keeper is asked to build, and deleted before it is asked to remove. So a template of
//! the keeper without a record was deleted, and a record that the keeper does not know has lost its build, unless the
//! request to build it is still under way.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    time::Duration,
};

use jiff::Timestamp;
use skep_api::{
    TemplateId,
    templates::{TemplateSource, TemplateState},
};
use skep_store::{
    DeleteTemplate, EnsureBaseTemplate, KnownTemplate, RecordTemplateState, TemplateStatus, TemplateStore,
};
use skep_swarm::{Error, Swarm};
use tokio::time::{sleep, timeout};

use crate::{
    swarm_handle::SwarmHandle,
    template_builds::{TemplateBuilds, to_store},
};

/// How often the keeper is asked while a template is built, and otherwise.
const BUILDING_INTERVAL: Duration = Duration::from_secs(1);
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// Compares records and files until the server ends.
pub(super) async fn reconcile_templates(
    store: &dyn TemplateStore,
    vms: SwarmHandle,
    builds: TemplateBuilds,
) -> Infallible {
    let Ok(swarm) = vms.swarm().await else { return std::future::pending().await };
    let mut reported = HashSet::new();
    loop {
        let pause = match reconcile(store, &swarm, &builds, &mut reported).await {
            Ok(true) => IDLE_INTERVAL,
            Ok(false) => BUILDING_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "the records of templates are not compared with their files now: {error}");
                IDLE_INTERVAL
            }
        };
        if timeout(pause, builds.changed()).await.is_ok() {
            // Many changes at once need few comparisons.
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Compares once. Returns whether no template is being built or still to be removed.
async fn reconcile(
    store: &dyn TemplateStore,
    swarm: &Swarm,
    builds: &TemplateBuilds,
    reported: &mut HashSet<TemplateId>,
) -> Result<bool, Error> {
    let known = store.known_templates().await?;
    // After the records and before the list: a build that is no longer under way here is in the list.
    let under_way = builds.snapshot();
    let mut held: HashMap<TemplateId, skep_swarm::TemplateStatus> =
        swarm.templates().await?.into_iter().map(|status| (status.template, status)).collect();
    let mut settled = under_way.is_empty();
    if let Some(base) = held.get(&TemplateId::BASE) {
        store.ensure_base_template(EnsureBaseTemplate { size: base.size, at: Timestamp::now() }).await?;
        if !known.iter().any(|template| template.id == TemplateId::BASE) {
            record(store, TemplateId::BASE, to_store(base.clone())).await?;
        }
    }
    for template in known {
        let status = match held.remove(&template.id) {
            Some(status) => to_store(status),
            // What the keeper refused to build failed with its reason.
            None if under_way.contains(&template.id) || template.state == TemplateState::Failed => continue,
            None if forget(store, &template).await? => continue,
            None => lost(&template),
        };
        log_outdated(&template, &status, reported);
        // A snapshot of a VM is not built again.
        settled &= template.source == TemplateSource::Vm
            || matches!(status.state(), TemplateState::Ready | TemplateState::Failed);
        record(store, template.id, status).await?;
    }
    held.remove(&TemplateId::BASE);
    let removed = remove_unknown(store, swarm, held.into_keys().collect()).await?;
    swarm.record_unusable_snapshots().await?;
    Ok(settled && removed)
}

async fn record(
    store: &dyn TemplateStore,
    template: TemplateId,
    status: TemplateStatus,
) -> skep_store::Result<bool> {
    store.record_template_state(RecordTemplateState { template, status, at: Timestamp::now() }).await
}

/// Deletes the record of a snapshot whose request was interrupted before the snapshot was stored. No caller received an
/// answer for it. Returns whether the template is such a record.
async fn forget(store: &dyn TemplateStore, template: &KnownTemplate) -> Result<bool, Error> {
    let is_interrupted = (template.source, template.state) == (TemplateSource::Vm, TemplateState::Building);
    let Some(account) = template.account.filter(|_| is_interrupted) else { return Ok(false) };
    let deletion = DeleteTemplate { account, id: template.id, at: Timestamp::now(), request_id: None };
    store.delete_template(deletion).await?;
    tracing::info!(template = %template.id, "the snapshot `{}` ({}) was interrupted and is forgotten", template.name, template.id);
    Ok(true)
}

/// The state of a template that the keeper does not know.
fn lost(template: &KnownTemplate) -> TemplateStatus {
    let reason = match template.state {
        TemplateState::Building => "the server ended during the build",
        _ => "its files are missing in the data directory",
    };
    TemplateStatus::Failed { reason: reason.to_owned() }
}

/// Removes templates whose records are deleted. Returns `false` if one of them could not be removed, for example because a
/// VM of it is being ended.
async fn remove_unknown(
    store: &dyn TemplateStore,
    swarm: &Swarm,
    unknown: Vec<TemplateId>,
) -> Result<bool, Error> {
    if unknown.is_empty() {
        return Ok(true);
    }
    // Records that were created since the comparison began.
    let known: HashSet<TemplateId> =
        store.known_templates().await?.into_iter().map(|template| template.id).collect();
    let mut all_removed = true;
    for template in unknown.into_iter().filter(|template| !known.contains(template)) {
        match swarm.remove_template(template).await {
            Ok(()) => tracing::info!(%template, "the files of the deleted template {template} are removed"),
            Err(error) => {
                all_removed = false;
                tracing::warn!(%template, %error, "the files of the deleted template {template} are not removed yet: {error}");
            }
        }
    }
    Ok(all_removed)
}

/// Logs a template that becomes outdated, once.
fn log_outdated(template: &KnownTemplate, status: &TemplateStatus, reported: &mut HashSet<TemplateId>) {
    let (id, name) = (template.id, &template.name);
    match status {
        TemplateStatus::Outdated { reason } => {
            if reported.insert(id) {
                let consequence = match template.source {
                    TemplateSource::Vm => {
                        "its memory cannot be used; a boot without it (`\"memory\": false`) starts VMs from its disk alone"
                    }
                    _ => "it is being built again",
                };
                tracing::warn!(
                    template = %id,
                    "the template `{name}` ({id}) is outdated ({reason}): {consequence}"
                );
            }
        }
        _ => {
            reported.remove(&id);
        }
    }
}
