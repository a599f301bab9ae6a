//! Tests of templates.

use std::sync::Arc;

use serde_json::json;
use skep_api::{
    AccountId, ErrorCode, TemplateId, VmId,
    egress::EgressPolicy,
    keys::Limits,
    swarm::EndReason,
    templates::{GuestSize, Template, TemplateSource, TemplateState},
};

use super::{
    account_named, all_events, boot, booted, counts, default_account, deletion, end, events_of, moment,
};
use crate::{
    CreateTemplate, DeleteTemplate, EnsureBaseTemplate, EventKind, IdempotentRequest, ListTemplates,
    RecordSnapshot, RecordTemplateState, Store, TemplateStatus, VmBooted,
};

const BASE_SIZE: GuestSize = GuestSize { memory_mb: 1024, vcpus: 2, disk_mb: 10_240 };
const SIZE: GuestSize = GuestSize { memory_mb: 4096, vcpus: 4, disk_mb: 20_480 };

async fn with_base(store: &dyn Store) -> AccountId {
    store.ensure_base_template(EnsureBaseTemplate { size: BASE_SIZE, at: moment(1) }).await.unwrap();
    default_account(store).await.id
}

fn new(account: AccountId, name: &str) -> CreateTemplate {
    CreateTemplate {
        source: TemplateSource::Setup,
        id: TemplateId::generate(),
        account,
        name: name.parse().unwrap(),
        parent: TemplateId::BASE,
        size: SIZE,
        egress: None,
        description: Some("for\tbuilds".to_owned()),
        max_templates: 5,
        max_building: 5,
        at: moment(2),
        request_id: Some(format!("create-{name}")),
        once: None,
    }
}

async fn made(store: &dyn Store, account: AccountId, name: &str) -> Template {
    store.create_template(new(account, name)).await.unwrap()
}

async fn record(store: &dyn Store, template: TemplateId, status: TemplateStatus) -> bool {
    store.record_template_state(RecordTemplateState { template, status, at: moment(3) }).await.unwrap()
}

fn ready() -> TemplateStatus {
    TemplateStatus::Ready { key: "k1".to_owned(), size_bytes: 700, own_bytes: 100 }
}

fn delete(account: AccountId, id: TemplateId) -> DeleteTemplate {
    DeleteTemplate { account, id, at: moment(9), request_id: Some("delete".to_owned()) }
}

fn vm_of(account: AccountId, template: &Template, pid: u32) -> VmBooted {
    VmBooted { template: template.name.to_string(), template_id: template.id, ..booted(account, pid) }
}

pub async fn a_template_is_kept_as_it_was_made_and_built(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let command = new(account, "big");
    let made = store.create_template(command.clone()).await.unwrap();
    let expected = Template {
        name: command.name.clone(),
        id: command.id,
        source: TemplateSource::Setup,
        parent: Some("base".parse().unwrap()),
        state: TemplateState::Building,
        progress: None,
        error: None,
        memory_mb: 4096,
        vcpus: 4,
        disk_mb: 20_480,
        size_bytes: None,
        own_bytes: None,
        egress: None,
        public: false,
        description: command.description.clone(),
        account: Some(account),
        created_at: moment(2),
        last_used_at: None,
        children: 0,
        vms: 0,
    };
    assert_eq!(made, expected);
    assert_eq!(store.template(account, "big").await.unwrap(), expected);
    let progress = Some("boot".to_owned());
    assert!(record(&*store, made.id, TemplateStatus::Building { progress: progress.clone() }).await);
    assert_eq!(store.template(account, "big").await.unwrap(), Template { progress, ..expected.clone() });
    assert!(record(&*store, made.id, ready()).await);
    let built =
        Template { state: TemplateState::Ready, size_bytes: Some(700), own_bytes: Some(100), ..expected };
    assert_eq!(store.template(account, "big").await.unwrap(), built);
    store.record_boots(boot(vec![vm_of(account, &built, 4)])).await.unwrap();
    let used = store.template(account, "big").await.unwrap();
    assert_eq!(used, Template { last_used_at: Some(moment(500)), vms: 1, ..built });
    let egress = Some(EgressPolicy::listing(&["api.example.com"]).unwrap());
    let snapshot = CreateTemplate { egress: egress.clone(), ..new(account, "snapshot") };
    assert_eq!(store.create_template(snapshot).await.unwrap().egress, egress);
    let base = store.template(account, "base").await.unwrap();
    assert_eq!((base.id, base.account, base.public, base.children), (TemplateId::BASE, None, true, 2));
    assert_eq!((base.source, base.memory_mb, base.vcpus), (TemplateSource::Base, 1024, 2));
    // A later start with other settings.
    let size = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };
    store.ensure_base_template(EnsureBaseTemplate { size, at: moment(7) }).await.unwrap();
    let resized = store.template(account, "base").await.unwrap();
    assert_eq!(resized, Template { memory_mb: 128, vcpus: 1, disk_mb: 2048, ..base });
}

pub async fn a_template_is_found_by_name_and_id_by_its_account_alone(store: Arc<dyn Store>) {
    let own = with_base(&*store).await;
    let other = account_named(&*store, "acme").await.id;
    let template = made(&*store, own, "big").await;
    let id = template.id.to_string();
    assert_eq!(store.template(own, &id).await.unwrap(), template);
    for reference in ["big", &id, "nothing", ""] {
        let refused = store.template(other, reference).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::UnknownTemplate);
        assert!(refused.to_string().contains(reference), "{refused}");
    }
    let refused = store.delete_template(delete(other, template.id)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnknownTemplate);
    // Of a template that both see, each account sees only its own users.
    assert_eq!(store.template(other, "base").await.unwrap().children, 0);
    let child = CreateTemplate { parent: template.id, ..new(other, "theirs") };
    assert_eq!(store.create_template(child).await.unwrap_err().code(), ErrorCode::UnknownTemplate);
}

pub async fn templates_are_listed_once_base_first(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let other = account_named(&*store, "acme").await.id;
    made(&*store, other, "theirs").await;
    let mut expected = vec![TemplateId::BASE];
    for name in ["c", "a", "b"] {
        expected.push(made(&*store, account, name).await.id);
    }
    expected.sort_unstable();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_templates(ListTemplates { account, limit: 2, after }).await.unwrap();
        seen.extend(page.templates.iter().map(|template| template.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, expected);
    let known = store.known_templates().await.unwrap();
    assert_eq!(known.len(), 5);
    assert_eq!((known[0].id, known[0].account), (TemplateId::BASE, None));
}

pub async fn a_name_belongs_to_one_template_of_an_account(store: Arc<dyn Store>) {
    let own = with_base(&*store).await;
    let other = account_named(&*store, "acme").await.id;
    let first = made(&*store, own, "big").await;
    for name in ["big", "base"] {
        let refused = store.create_template(new(own, name)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NameTaken);
        assert!(refused.to_string().contains(name), "{refused}");
    }
    let theirs = made(&*store, other, "big").await;
    assert_eq!(store.template(own, "big").await.unwrap().id, first.id);
    assert_eq!(store.template(other, "big").await.unwrap().id, theirs.id);
    store.delete_template(delete(own, first.id)).await.unwrap();
    assert_ne!(made(&*store, own, "big").await.id, first.id);
    assert_eq!(counts(&*store).await["template.building"], 3);
}

pub async fn templates_and_builds_of_an_account_are_limited(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let limited = |name: &str| CreateTemplate { max_templates: 3, max_building: 2, ..new(account, name) };
    let first = store.create_template(limited("a")).await.unwrap();
    // A snapshot counts as a template.
    let snapshot = CreateTemplate { source: TemplateSource::Vm, ..limited("b") };
    store.create_template(snapshot).await.unwrap();
    let refused = store.create_template(limited("c")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
    assert!(refused.to_string().contains("2 templates of this account are being built"), "{refused}");
    record(&*store, first.id, TemplateStatus::Failed { reason: "no disk".to_owned() }).await;
    store.create_template(limited("c")).await.unwrap();
    record(&*store, first.id, ready()).await;
    for source in [TemplateSource::Setup, TemplateSource::Vm] {
        let further = CreateTemplate { source, ..limited("d") };
        let refused = store.create_template(further).await.unwrap_err();
        assert!(refused.to_string().contains("has 3 templates"), "{refused}");
    }
    let other = account_named(&*store, "acme").await.id;
    store.create_template(CreateTemplate { account: other, ..limited("d") }).await.unwrap();
}

pub async fn the_disk_space_of_an_account_is_that_of_its_own_templates(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let other = account_named(&*store, "other").await.id;
    let occupied = async |account| store.account_disk(account).await.unwrap().templates_bytes;
    assert_eq!(store.account_disk(account).await.unwrap().limits, Limits::NONE);
    assert_eq!((occupied(account).await, occupied(other).await), (0, 0));
    record(&*store, TemplateId::BASE, ready()).await;
    let built = made(&*store, account, "built").await;
    assert_eq!(
        occupied(account).await,
        SIZE.memory_mb << 20,
        "one that is being built counts with its memory"
    );
    record(&*store, built.id, ready()).await;
    assert_eq!(occupied(account).await, 100);
    record(&*store, built.id, TemplateStatus::Outdated { reason: "old".to_owned() }).await;
    assert_eq!(occupied(account).await, 100, "its files are still there");
    let failed = made(&*store, account, "failed").await;
    record(&*store, failed.id, TemplateStatus::Failed { reason: "no".to_owned() }).await;
    // Who takes a snapshot counts it until it is stored.
    let snapshot = CreateTemplate { source: TemplateSource::Vm, ..new(account, "snapshot") };
    let snapshot = store.create_template(snapshot).await.unwrap();
    assert_eq!(occupied(account).await, 100);
    record(&*store, snapshot.id, ready()).await;
    assert_eq!((occupied(account).await, occupied(other).await), (200, 0));
    store.delete_template(delete(account, built.id)).await.unwrap();
    assert_eq!(occupied(account).await, 100);
    let unknown = store.account_disk(AccountId::generate()).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::UnknownAccount);
}

pub async fn a_template_that_is_used_is_not_deleted(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let template = made(&*store, account, "big").await;
    let child = CreateTemplate { parent: template.id, ..new(account, "bigger") };
    let child = store.create_template(child).await.unwrap();
    assert_eq!(child.parent, Some(template.name.clone()));
    let vm = vm_of(account, &template, 3);
    store.record_boots(boot(vec![vm.clone()])).await.unwrap();
    let seen = store.template(account, "big").await.unwrap();
    assert_eq!((seen.children, seen.vms), (1, 1));
    let refused = store.delete_template(delete(account, template.id)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::TemplateInUse);
    for named in [vm.id.to_string().as_str(), "`bigger`", "`big`"] {
        assert!(refused.to_string().contains(named), "{named}: {refused}");
    }
    store.record_end(end(vm.id, EndReason::Deleted, 600)).await.unwrap();
    let refused = store.delete_template(delete(account, template.id)).await.unwrap_err();
    assert!(!refused.to_string().contains("vm_") && refused.to_string().contains("`bigger`"), "{refused}");
    store.delete_template(delete(account, child.id)).await.unwrap();
    let deleted = store.delete_template(delete(account, template.id)).await.unwrap();
    assert_eq!((deleted.id, deleted.name), (template.id, template.name.clone()));
    let again = store.delete_template(delete(account, template.id)).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::UnknownTemplate);
    let base = store.delete_template(delete(account, TemplateId::BASE)).await.unwrap_err();
    assert_eq!(base.code(), ErrorCode::TemplateProtected);
    assert_eq!(counts(&*store).await["template.deleted"], 2);
    // The records of VMs outlive their template.
    let live = store.live_vms().await.unwrap();
    assert!(live.is_empty());
    let vms = crate::ListVms {
        account,
        set: crate::VmSet::Ended,
        filter: Default::default(),
        limit: 9,
        after: None,
    };
    assert_eq!(store.list_vms(vms).await.unwrap().vms[0].vm.template, "big");
}

pub async fn a_vm_of_a_template_that_was_deleted_is_not_recorded(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let template = made(&*store, account, "big").await;
    store.delete_template(delete(account, template.id)).await.unwrap();
    let refused = store.record_boots(boot(vec![vm_of(account, &template, 3)])).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnknownTemplate);
    assert!(store.live_vms().await.unwrap().is_empty());
    // The template `base` exists without a record.
    store.record_boots(boot(vec![booted(account, 4)])).await.unwrap();
}

pub async fn a_state_is_recorded_once_with_its_event(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let id = made(&*store, account, "big").await.id;
    let reason = || "another processor".to_owned();
    let steps = [
        (ready(), true),
        (ready(), false),
        (TemplateStatus::Damaged { reason: "layer".to_owned() }, true),
        (ready(), true),
        (TemplateStatus::Outdated { reason: reason() }, true),
        (TemplateStatus::Outdated { reason: reason() }, false),
        (TemplateStatus::Building { progress: None }, true),
        (TemplateStatus::Failed { reason: reason() }, true),
    ];
    for (status, changes) in steps {
        let state = status.state();
        let error = status.reason().map(str::to_owned);
        assert_eq!(record(&*store, id, status).await, changes, "{state}");
        let seen = store.template(account, "big").await.unwrap();
        assert_eq!((seen.state, &seen.error), (state, &error));
        assert_eq!(seen.size_bytes, Some(700), "{state}");
        let known = store.known_templates().await.unwrap();
        let known = known.iter().find(|known| known.id == id).unwrap();
        assert_eq!((known.state, &known.reason), (state, &error));
    }
    let kinds: Vec<_> = all_events(&*store).await.iter().map(|event| event.kind.as_str()).collect();
    let expected =
        ["building", "ready", "ready", "outdated", "failed"].map(|kind| format!("template.{kind}"));
    assert_eq!(kinds, expected);
    let failed = events_of(&*store, EventKind::TemplateFailed).await.remove(0);
    assert_eq!((failed.account, &failed.body["reason"]), (account, &reason().into()));
    assert_eq!((&failed.body["template"], &failed.body["name"]), (&id.to_string().into(), &"big".into()));
    // The template of the server changes without an event.
    assert!(record(&*store, TemplateId::BASE, ready()).await);
    assert!(!record(&*store, TemplateId::generate(), ready()).await);
    assert_eq!(all_events(&*store).await.len(), 5);
}

pub async fn the_answer_of_a_named_creation_is_kept_with_it(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let once = IdempotentRequest { path: "/api/templates", key: "k".to_owned(), body_hash: [1; 32] };
    let stored = |once: IdempotentRequest| store.stored_template_answer(account, once, moment(3));
    assert_eq!(stored(once.clone()).await.unwrap(), None);
    let command = CreateTemplate { once: Some(once.clone()), ..new(account, "big") };
    let made = store.create_template(command).await.unwrap();
    assert_eq!(stored(once.clone()).await.unwrap(), Some(made));
    let other = IdempotentRequest { body_hash: [2; 32], ..once };
    assert_eq!(stored(other).await.unwrap_err().code(), ErrorCode::IdempotencyMismatch);
}

pub async fn templates_end_with_their_account(store: Arc<dyn Store>) {
    let own = with_base(&*store).await;
    let other = account_named(&*store, "acme").await.id;
    let parent = made(&*store, other, "big").await;
    store.create_template(CreateTemplate { parent: parent.id, ..new(other, "bigger") }).await.unwrap();
    let kept = made(&*store, own, "kept").await;
    store.delete_account(deletion(other, 5)).await.unwrap();
    let known: Vec<_> = store.known_templates().await.unwrap().into_iter().map(|known| known.id).collect();
    assert_eq!(known, [TemplateId::BASE, kept.id]);
}

pub async fn a_snapshot_is_recorded_with_its_vm(store: Arc<dyn Store>) {
    let account = with_base(&*store).await;
    let template = store
        .create_template(CreateTemplate { source: TemplateSource::Vm, ..new(account, "taken") })
        .await
        .unwrap();
    let command = |template| RecordSnapshot {
        account,
        template,
        status: ready(),
        size_bytes: 700,
        own_bytes: 100,
        vm: VmId::generate(),
        pid: 7,
        at: moment(5),
        request_id: Some("snapshot".to_owned()),
    };
    let command_of_taken = command(template.id);
    let stored = store.record_snapshot(command_of_taken.clone()).await.unwrap();
    assert_eq!((stored.source, stored.state), (TemplateSource::Vm, TemplateState::Ready));
    assert_eq!((stored.size_bytes, stored.own_bytes), (Some(700), Some(100)));
    let events = events_of(&*store, EventKind::VmSnapshotted).await;
    let body = json!({ "vm": command_of_taken.vm, "pid": 7, "template": template.id, "name": "taken" });
    assert_eq!(serde_json::Value::from(events[0].body.clone()), body);
    assert_eq!(events_of(&*store, EventKind::TemplateReady).await.len(), 1);
    let known = store.known_templates().await.unwrap();
    assert_eq!(known.iter().find(|one| one.id == template.id).unwrap().source, TemplateSource::Vm);
    let refused = store.record_snapshot(command(TemplateId::generate())).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnknownTemplate);
    assert_eq!(events_of(&*store, EventKind::VmSnapshotted).await.len(), 1);

    let late = CreateTemplate { source: TemplateSource::Vm, ..new(account, "late") };
    let late = store.create_template(late).await.unwrap();
    let status = TemplateStatus::Outdated { reason: "another engine".to_owned() };
    let stored = store.record_snapshot(RecordSnapshot { status, ..command(late.id) }).await.unwrap();
    assert_eq!((stored.state, stored.size_bytes), (TemplateState::Outdated, Some(700)));
    assert_eq!(store.account_disk(account).await.unwrap().templates_bytes, 200, "its files are there");
}
