//! Tests of webhooks and their deliveries.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::Map;
use skep_api::{
    AccountId, DeliveryId, ErrorCode, WebhookId,
    budget::{MAX_ANSWER_BYTES, json_len},
    webhooks::{Delivery, DeliveryAttempt, DeliveryState, DisabledReason},
};

use super::{account_named, all_events, boot, booted, default_account, deletion, moment, new_key};
use crate::{
    ChangeWebhook, CreateWebhook, DeleteWebhook, DeliveryContent, DeliveryOutcome, EnqueueDeliveries,
    Enqueued, Event, ListDeliveries, ListDue, ListWebhooks, RecordAttempt, Redeliver, RotateWebhook, Store,
    TestWebhook, TrimHistory, Webhook,
};

fn new(account: AccountId, types: &[&str]) -> CreateWebhook {
    CreateWebhook {
        id: WebhookId::generate(),
        account,
        url: "https://hooks.example.com/süß".to_owned(),
        types: types.iter().map(|&word| word.to_owned()).collect(),
        description: Some("tells\tthe board".to_owned()),
        secret: vec![0, 1, 255],
        max_webhooks: 5,
        at: moment(1),
    }
}

async fn made(store: &dyn Store, account: AccountId, types: &[&str]) -> WebhookId {
    store.create_webhook(new(account, types)).await.unwrap().id
}

fn change(account: AccountId, id: WebhookId, step: i64) -> ChangeWebhook {
    ChangeWebhook { account, id, url: None, types: None, description: None, enabled: None, at: moment(step) }
}

async fn enable(store: &dyn Store, account: AccountId, id: WebhookId, enabled: bool) -> Webhook {
    let change = ChangeWebhook { enabled: Some(enabled), ..change(account, id, 9) };
    store.change_webhook(change).await.unwrap()
}

async fn enqueue(store: &dyn Store, events: u32, pending: u32) -> Enqueued {
    let command = EnqueueDeliveries { events, webhooks: 10, max_pending: pending, at: moment(10) };
    store.enqueue_deliveries(command).await.unwrap()
}

/// All deliveries of a webhook, oldest first.
async fn deliveries(store: &dyn Store, account: AccountId, webhook: WebhookId) -> Vec<Delivery> {
    let query = ListDeliveries { account, webhook, limit: 1_000, before: None };
    let mut found = store.list_deliveries(query).await.unwrap().deliveries;
    found.reverse();
    found
}

async fn vms(store: &dyn Store, account: AccountId, pids: std::ops::Range<u32>) {
    store.record_boots(boot(pids.map(|pid| booted(account, pid)).collect())).await.unwrap();
}

fn ids<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<String> {
    events.into_iter().map(|event| event.id().to_string()).collect()
}

fn events_in(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.event.clone()).collect()
}

fn attempt(delivery: DeliveryId, status: u16, then: DeliveryOutcome, step: i64) -> RecordAttempt {
    RecordAttempt {
        delivery,
        attempt: DeliveryAttempt {
            at: moment(step),
            status: Some(status),
            duration_ms: 7,
            error: None,
            answer: Some("body".to_owned()),
        },
        outcome: then,
        endpoint_gone: false,
        hold_until: None,
        disable_after: SignedDuration::from_hours(1),
    }
}

pub async fn a_webhook_is_kept_as_it_was_made_and_changed(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let command = new(own, &["vm.*"]);
    let (id, first) = (command.id, store.create_webhook(command.clone()).await.unwrap());
    assert_eq!((first.id, first.account, &first.url, &first.types), (id, own, &command.url, &command.types));
    assert_eq!((&first.description, &first.secret), (&command.description, &command.secret));
    assert_eq!((&first.previous, first.disabled, first.created_at), (&None, None, moment(1)));
    assert_eq!(store.webhook(own, id).await.unwrap(), first);
    let nothing = store.change_webhook(change(own, id, 2)).await.unwrap();
    assert_eq!(nothing, Webhook { updated_at: moment(2), ..first.clone() });
    let url = Some("https://elsewhere.example/".to_owned());
    let all = ChangeWebhook {
        url: url.clone(),
        types: Some(vec![]),
        description: Some(None),
        ..change(own, id, 3)
    };
    let changed = store.change_webhook(all).await.unwrap();
    assert_eq!(
        (Some(&changed.url), &changed.types[..], &changed.description),
        (url.as_ref(), &[][..], &None)
    );
    let rotation =
        RotateWebhook { account: own, id, secret: vec![2], previous_until: Some(moment(99)), at: moment(4) };
    let rotated = store.rotate_webhook(rotation.clone()).await.unwrap();
    let previous = rotated.previous.unwrap();
    assert_eq!((rotated.secret, previous.secret, previous.until), (vec![2], vec![0, 1, 255], moment(99)));
    let ended = RotateWebhook { secret: vec![3], previous_until: None, ..rotation.clone() };
    let ended = store.rotate_webhook(ended).await.unwrap();
    assert_eq!((ended.secret, ended.previous), (vec![3], None));
    // Another account sees none of it.
    let refusals = [
        store.webhook(other, id).await.unwrap_err(),
        store.change_webhook(change(other, id, 5)).await.unwrap_err(),
        store.rotate_webhook(RotateWebhook { account: other, ..rotation }).await.unwrap_err(),
        store.delete_webhook(DeleteWebhook { account: other, id, at: moment(5) }).await.unwrap_err(),
        store
            .list_deliveries(ListDeliveries { account: other, webhook: id, limit: 1, before: None })
            .await
            .unwrap_err(),
    ];
    assert!(refusals.iter().all(|error| error.code() == ErrorCode::UnknownWebhook), "{refusals:?}");
    assert_eq!(store.webhook(own, id).await.unwrap().secret, [3]);
    assert!(all_events(&*store).await.is_empty());
}

pub async fn webhooks_are_listed_newest_first_and_limited(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.push(made(&*store, account, &["vm.*"]).await);
    }
    assert_eq!(store.create_webhook(new(account, &[])).await.unwrap_err().code(), ErrorCode::QuotaExceeded);
    expected.sort_unstable_by(|one, other| other.cmp(one));
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let page = store.list_webhooks(ListWebhooks { account, limit: 2, before }).await.unwrap();
        seen.extend(page.webhooks.iter().map(|webhook| webhook.id));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, expected);
    // A deleted webhook does not count towards the limit and is not listed.
    let gone = DeleteWebhook { account, id: expected[0], at: moment(9) };
    store.delete_webhook(gone).await.unwrap();
    assert_eq!(store.delete_webhook(gone).await.unwrap_err().code(), ErrorCode::UnknownWebhook);
    made(&*store, account, &["vm.*"]).await;
    let page = store.list_webhooks(ListWebhooks { account, limit: 9, before: None }).await.unwrap();
    assert!(page.webhooks.len() == 5 && page.webhooks.iter().all(|webhook| webhook.id != expected[0]));
}

pub async fn events_become_deliveries_of_those_who_want_them_once(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    vms(&*store, own, 1..3).await;
    let (wants_vms, wants_keys) =
        (made(&*store, own, &["vm.*"]).await, made(&*store, own, &["key.created"]).await);
    let foreign = made(&*store, other, &["vm.*", "key.*"]).await;
    let before = all_events(&*store).await.len();
    vms(&*store, own, 3..10).await;
    store.create_key(new_key(own, "ci", 1)).await.unwrap();
    let events = all_events(&*store).await.split_off(before);
    let of = |kind: &str| ids(events.iter().filter(|event| event.kind.as_str().starts_with(kind)));
    // With the smallest batches.
    for step in 0..100 {
        let done = enqueue(&*store, 2, 1_000).await;
        assert_eq!(done.newest, events.last().unwrap().sequence);
        if !done.behind {
            break;
        }
        assert!(done.advanced && step < 99);
    }
    assert_eq!(events_in(&deliveries(&*store, own, wants_vms).await), of("vm."));
    assert_eq!(events_in(&deliveries(&*store, own, wants_keys).await), of("key."));
    assert!(deliveries(&*store, other, foreign).await.is_empty());
    let again = enqueue(&*store, 100, 1_000).await;
    assert!(!again.behind && !again.advanced);
    assert_eq!(deliveries(&*store, own, wants_vms).await.len(), 7);
    let first = &deliveries(&*store, own, wants_vms).await[0];
    assert_eq!(
        (first.state, first.next_attempt_at, first.created_at),
        (DeliveryState::Pending, Some(moment(10)), moment(10))
    );
    assert!(first.kind == "vm.booted" && first.attempts.is_empty());
}

pub async fn too_many_deliveries_wait_as_events_and_none_is_lost(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let (slow, quick) = (made(&*store, account, &["vm.*"]).await, made(&*store, account, &["key.*"]).await);
    vms(&*store, account, 1..8).await;
    store.create_key(new_key(account, "ci", 1)).await.unwrap();
    let expected = ids(all_events(&*store).await.iter().filter(|event| event.kind.as_str() == "vm.booted"));
    let mut done = enqueue(&*store, 100, 3).await;
    assert!(done.behind && done.advanced);
    assert_eq!(deliveries(&*store, account, slow).await.len(), 3);
    assert_eq!(deliveries(&*store, account, quick).await.len(), 1, "one that is full holds up no other");
    done = enqueue(&*store, 100, 3).await;
    assert!(done.behind && !done.advanced, "nothing more can be done now");
    while done.behind {
        let pending = deliveries(&*store, account, slow).await;
        let pending = pending.iter().find(|delivery| delivery.state == DeliveryState::Pending).unwrap();
        store.record_attempt(attempt(pending.id, 200, DeliveryOutcome::Delivered, 20)).await.unwrap();
        done = enqueue(&*store, 100, 3).await;
    }
    assert_eq!(events_in(&deliveries(&*store, account, slow).await), expected);
}

pub async fn attempts_are_noted_and_followed(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let webhook = made(&*store, account, &["vm.*"]).await;
    vms(&*store, account, 1..3).await;
    enqueue(&*store, 100, 100).await;
    let due = async |step: i64| {
        store.due_deliveries(ListDue { webhook, at: moment(step), limit: 10 }).await.unwrap()
    };
    assert!(due(9).await.is_empty());
    let both = due(10).await;
    assert_eq!(both.len(), 2);
    let DeliveryContent::Event(event) = &both[0].content else { panic!("{both:?}") };
    assert_eq!((event.id().to_string(), both[0].attempts), (both[0].event.clone(), 0));
    let (first, second) = (both[0].id, both[1].id);
    let again = attempt(first, 500, DeliveryOutcome::RetryAt(moment(60)), 20);
    assert_eq!(store.record_attempt(again).await.unwrap(), None);
    assert_eq!(due(59).await.iter().map(|due| due.id).collect::<Vec<_>>(), [second]);
    let known = store.due_webhooks().await.unwrap();
    assert_eq!((known.len(), known[0].id, known[0].account), (1, webhook, account));
    assert_eq!((known[0].failing, known[0].next_at), (true, Some(moment(10))));
    // A requested pause applies to all pending deliveries.
    let held = RecordAttempt {
        hold_until: Some(moment(500)),
        ..attempt(second, 503, DeliveryOutcome::RetryAt(moment(40)), 21)
    };
    store.record_attempt(held).await.unwrap();
    assert_eq!(store.due_webhooks().await.unwrap()[0].next_at, Some(moment(500)));
    store.record_attempt(attempt(second, 204, DeliveryOutcome::Delivered, 70)).await.unwrap();
    let known = store.due_webhooks().await.unwrap();
    assert_eq!((known[0].failing, known[0].next_at), (false, Some(moment(60))));
    assert_eq!(due(60).await[0].attempts, 1);
    store.record_attempt(attempt(first, 500, DeliveryOutcome::Failed, 80)).await.unwrap();
    let found = deliveries(&*store, account, webhook).await;
    assert_eq!((found[0].state, found[1].state), (DeliveryState::Failed, DeliveryState::Delivered));
    assert_eq!(found[0].attempts.len(), 2);
    assert_eq!(found[1].attempts[1], attempt(second, 204, DeliveryOutcome::Delivered, 70).attempt);
    assert_eq!(store.due_webhooks().await.unwrap()[0].next_at, None);
    // Redelivery resets the count of attempts; the number of stored attempts is limited.
    for step in 0..30 {
        let command = Redeliver { account, webhook, delivery: first, at: moment(90 + step) };
        assert_eq!(store.redeliver(command).await.unwrap().state, DeliveryState::Pending);
        assert_eq!(due(90 + step).await[0].attempts, 0);
        store.record_attempt(attempt(first, 200, DeliveryOutcome::Delivered, 90 + step)).await.unwrap();
    }
    let attempts = &deliveries(&*store, account, webhook).await[0].attempts;
    assert!(attempts.len() < 30 && attempts.last().unwrap().at == moment(119), "{attempts:?}");
    let unknown = attempt(DeliveryId::generate(), 200, DeliveryOutcome::Delivered, 9);
    assert_eq!(store.record_attempt(unknown).await.unwrap_err().code(), ErrorCode::UnknownDelivery);
}

pub async fn a_webhook_is_disabled_and_begins_anew(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let webhook = made(&*store, account, &["vm.*"]).await;
    vms(&*store, account, 1..2).await;
    enqueue(&*store, 100, 100).await;
    let first = deliveries(&*store, account, webhook).await[0].id;
    let hour = 3_600_000;
    for (step, expected) in [(20, None), (20 + hour, None), (21 + hour, Some(DisabledReason::Failing))] {
        let again = attempt(first, 500, DeliveryOutcome::RetryAt(moment(step)), step);
        assert_eq!(store.record_attempt(again).await.unwrap(), expected, "{step}");
    }
    let disabled = store.webhook(account, webhook).await.unwrap().disabled.unwrap();
    assert_eq!((disabled.at, disabled.reason), (moment(21 + hour), DisabledReason::Failing));
    assert!(store.due_webhooks().await.unwrap().is_empty());
    vms(&*store, account, 2..4).await;
    assert!(!enqueue(&*store, 100, 100).await.advanced);
    let redeliver = Redeliver { account, webhook, delivery: first, at: moment(30) };
    let test =
        TestWebhook { account, webhook, delivery: DeliveryId::generate(), data: Map::new(), at: moment(30) };
    for refused in
        [store.redeliver(redeliver).await.unwrap_err(), store.test_webhook(test.clone()).await.unwrap_err()]
    {
        assert_eq!(refused.code(), ErrorCode::WebhookDisabled);
    }
    assert_eq!(enable(&*store, account, webhook, true).await.disabled, None);
    assert!(!enqueue(&*store, 100, 100).await.behind);
    vms(&*store, account, 4..5).await;
    enqueue(&*store, 100, 100).await;
    assert_eq!(deliveries(&*store, account, webhook).await.len(), 2, "what happened meanwhile is not sent");
    // A disabled webhook does not change; one whose endpoint is gone is disabled immediately.
    let gone =
        RecordAttempt { endpoint_gone: true, ..attempt(first, 410, DeliveryOutcome::Failed, 40 + hour) };
    assert_eq!(store.record_attempt(gone).await.unwrap(), Some(DisabledReason::Gone));
    let off = enable(&*store, account, webhook, false).await;
    assert_eq!(off.disabled.unwrap().reason, DisabledReason::Gone);
    enable(&*store, account, webhook, true).await;
    let delivery = store.test_webhook(test.clone()).await.unwrap();
    assert_eq!(
        (delivery.id, delivery.kind.as_str(), delivery.event),
        (test.delivery, "webhook.test", test.delivery.to_string())
    );
    let due = store.due_deliveries(ListDue { webhook, at: moment(30), limit: 10 }).await.unwrap();
    let found = due.iter().find(|due| due.id == test.delivery).unwrap();
    assert_eq!(found.content, DeliveryContent::Test(moment(30), Map::new()));
}

pub async fn deliveries_go_with_their_events_and_their_webhooks(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let (webhook, doomed) = (made(&*store, own, &["vm.*"]).await, made(&*store, own, &["vm.*"]).await);
    let foreign = made(&*store, other, &["key.*"]).await;
    vms(&*store, own, 1..6).await;
    enqueue(&*store, 100, 100).await;
    store.delete_webhook(DeleteWebhook { account: own, id: doomed, at: moment(11) }).await.unwrap();
    store.delete_account(deletion(other, 12)).await.unwrap();
    let active: Vec<WebhookId> = store.due_webhooks().await.unwrap().iter().map(|due| due.id).collect();
    assert_eq!(active, [webhook], "{foreign} ends with its account, and {doomed} is deleted");
    let trim = TrimHistory { before: moment(0), bytes: 1 << 30, batch: 2 };
    let mut gone = 0;
    loop {
        let trimmed = store.trim_history(trim).await.unwrap();
        gone += trimmed.deliveries;
        if trimmed.is_empty() {
            break;
        }
    }
    assert_eq!(gone, 5, "those of the webhook that was deleted");
    assert_eq!(deliveries(&*store, own, webhook).await.len(), 5);
    // Deliveries are deleted with their events.
    let due = store.due_deliveries(ListDue { webhook, at: moment(10), limit: 1 }).await.unwrap()[0].id;
    while !store.trim_history(TrimHistory { before: moment(9_000), ..trim }).await.unwrap().is_empty() {}
    assert!(all_events(&*store).await.is_empty());
    assert!(deliveries(&*store, own, webhook).await.is_empty());
    let late = attempt(due, 200, DeliveryOutcome::Delivered, 13);
    assert_eq!(store.record_attempt(late).await.unwrap_err().code(), ErrorCode::UnknownDelivery);
}

pub async fn deliveries_go_with_events_that_are_too_many(store: Arc<dyn Store>) {
    let (own, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    // The oldest event is that of the other account.
    vms(&*store, other, 100..101).await;
    let webhook = made(&*store, own, &["vm.*"]).await;
    vms(&*store, own, 1..6).await;
    enqueue(&*store, 100, 100).await;
    assert_eq!(deliveries(&*store, own, webhook).await.len(), 5);
    let trim = TrimHistory { before: moment(-1), bytes: 0, batch: 2 };
    let trimmed = store.trim_history(trim).await.unwrap();
    assert_eq!((trimmed.events, trimmed.deliveries), (2, 2));
    assert_eq!(deliveries(&*store, own, webhook).await.len(), 3);
    assert!(all_events(&*store).await.iter().any(|event| event.account == other));
}

pub async fn pages_of_long_deliveries_end_by_their_bytes(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let webhook = made(&*store, account, &["vm.*"]).await;
    vms(&*store, account, 1..21).await;
    enqueue(&*store, 100, 100).await;
    for delivery in deliveries(&*store, account, webhook).await {
        let mut tried = attempt(delivery.id, 200, DeliveryOutcome::Delivered, 20);
        tried.attempt.answer = Some("x".repeat(1 << 20));
        store.record_attempt(tried).await.unwrap();
    }
    let (mut seen, mut before) = (0, None);
    for _ in 0..20 {
        let query = ListDeliveries { account, webhook, limit: 1_000, before };
        let page = store.list_deliveries(query).await.unwrap();
        assert!(json_len(&page.deliveries) <= MAX_ANSWER_BYTES);
        seen += page.deliveries.len();
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, 20);
}
