//! Tests of the audit log and of the retention of audit entries and events.

use std::{collections::BTreeSet, sync::Arc};

use skep_api::{
    AccountId, AuditId, ErrorCode, KeyId,
    audit::{AuditEntry, AuditKey, Outcome},
    budget::{MAX_ANSWER_BYTES, json_len},
    egress::EgressPolicy,
};

use super::{account_named, all_events, boot, booted, default_account, moment};
use crate::{AuditFilter, EventScope, ListAudit, NewAuditEntry, OutcomeFilter, Store, TrimHistory};

fn entry(account: Option<AccountId>, step: i64) -> NewAuditEntry {
    let prefix = "sk-skep-prod-3f9a1c20".to_owned();
    let entry = AuditEntry {
        at: moment(step),
        key: account.map(|_| AuditKey { id: KeyId::generate(), prefix }),
        address: Some("2001:db8::7".parse().unwrap()),
        action: "boot".to_owned(),
        resource: Some("vm_x".to_owned()),
        egress: Some(EgressPolicy::All),
        outcome: Outcome { status: Some(201), code: None },
        request_id: format!("request-{step}"),
    };
    NewAuditEntry { id: AuditId::generate(), account, entry }
}

/// Returns `count` entries of an account from step `from` on, in order.
pub fn entries(account: AccountId, count: i64, from: i64) -> Vec<NewAuditEntry> {
    in_order((from..from + count).map(|step| entry(Some(account), step)).collect())
}

/// Gives the entries new ids in the order of their steps, independent of the clock.
fn in_order(mut entries: Vec<NewAuditEntry>) -> Vec<NewAuditEntry> {
    let mut ids: Vec<AuditId> = entries.iter().map(|entry| entry.id).collect();
    ids.sort_unstable();
    entries.iter_mut().zip(ids).for_each(|(entry, id)| entry.id = id);
    entries
}

fn query(account: AccountId, strangers: bool) -> ListAudit {
    ListAudit {
        account,
        include_unattributed: strangers,
        filter: AuditFilter::default(),
        limit: 100_000,
        before: None,
    }
}

async fn steps(store: &dyn Store, query: ListAudit) -> Vec<String> {
    let page = store.list_audit(query).await.unwrap();
    let step = |entry: AuditEntry| entry.request_id.replacen("request-", "", 1);
    page.entries.into_iter().map(step).collect()
}

pub async fn entries_are_kept_as_they_were(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let full = entry(Some(account), 2);
    let mut bare = entry(Some(account), 1);
    bare.entry = AuditEntry {
        key: None,
        address: None,
        resource: None,
        egress: None,
        outcome: Outcome { status: None, code: None },
        ..bare.entry
    };
    let mut refused = entry(Some(account), 0);
    refused.entry.outcome = Outcome { status: Some(403), code: Some(ErrorCode::ScopeMissing) };
    let written = in_order(vec![refused, bare, full]);
    store.record_audit(written.clone()).await.unwrap();
    let page = store.list_audit(query(account, false)).await.unwrap();
    assert_eq!(page.next, None);
    assert_eq!(page.entries, written.into_iter().rev().map(|new| new.entry).collect::<Vec<_>>());
    assert!(all_events(&*store).await.is_empty());
}

pub async fn an_entry_that_is_written_twice_stands_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let entries = in_order(vec![entry(Some(account), 1), entry(Some(account), 2)]);
    store.record_audit(entries.clone()).await.unwrap();
    store.record_audit(entries).await.unwrap();
    store.record_audit(vec![]).await.unwrap();
    assert_eq!(steps(&*store, query(account, false)).await, ["2", "1"]);
}

pub async fn an_account_sees_its_own_and_the_operator_what_was_refused_to_strangers(store: Arc<dyn Store>) {
    let (account, other) = (default_account(&*store).await.id, AccountId::generate());
    let entries = [Some(account), None, Some(other), None, Some(account), Some(other)];
    let entries = entries.into_iter().zip(1..).map(|(account, step)| entry(account, step)).collect();
    store.record_audit(in_order(entries)).await.unwrap();
    assert_eq!(steps(&*store, query(account, false)).await, ["5", "1"]);
    assert_eq!(steps(&*store, query(other, false)).await, ["6", "3"]);
    assert_eq!(steps(&*store, query(account, true)).await, ["5", "4", "2", "1"]);
    assert!(steps(&*store, query(AccountId::generate(), false)).await.is_empty());
}

pub async fn entries_are_found_by_each_filter(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut entries: Vec<_> = (1..=4).map(|step| entry(Some(account), step)).collect();
    entries[1].entry.action = "end_vm".to_owned();
    entries[2].entry.outcome = Outcome { status: Some(403), code: Some(ErrorCode::ScopeMissing) };
    entries[3].entry.outcome = Outcome { status: None, code: None };
    let key = entries[0].entry.key.clone().unwrap().id;
    store.record_audit(in_order(entries)).await.unwrap();
    let none = AuditFilter::default;
    for (filter, expected) in [
        (none(), vec!["4", "3", "2", "1"]),
        (AuditFilter { key: Some(key), ..none() }, vec!["1"]),
        (AuditFilter { key: Some(KeyId::generate()), ..none() }, vec![]),
        (AuditFilter { action: Some("end_vm".to_owned()), ..none() }, vec!["2"]),
        (AuditFilter { outcome: Some(OutcomeFilter::Succeeded), ..none() }, vec!["2", "1"]),
        (AuditFilter { outcome: Some(OutcomeFilter::Refused), ..none() }, vec!["3"]),
        (AuditFilter { outcome: Some(OutcomeFilter::Status(201)), ..none() }, vec!["2", "1"]),
        (AuditFilter { outcome: Some(OutcomeFilter::Code(ErrorCode::ScopeMissing)), ..none() }, vec!["3"]),
        (AuditFilter { since: Some(moment(3)), ..none() }, vec!["4", "3"]),
        (AuditFilter { until: Some(moment(3)), ..none() }, vec!["2", "1"]),
        (AuditFilter { since: Some(moment(2)), until: Some(moment(3)), ..none() }, vec!["2"]),
        (AuditFilter { key: Some(key), action: Some("end_vm".to_owned()), ..none() }, vec![]),
    ] {
        let description = format!("{filter:?}");
        assert_eq!(
            steps(&*store, ListAudit { filter, ..query(account, true) }).await,
            expected,
            "{description}"
        );
    }
}

pub async fn pages_of_the_audit_hold_every_entry_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let whose = |step: i64| (step % 3 != 0).then_some(account);
    store.record_audit(in_order((0..11).map(|step| entry(whose(step), step)).collect())).await.unwrap();
    let whole = steps(&*store, query(account, true)).await;
    assert_eq!(whole.len(), 11);
    for limit in [1, 2, 5, 10, 11, 100] {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = store.list_audit(ListAudit { limit, before, ..query(account, true) }).await.unwrap();
            assert!(page.entries.len() <= limit as usize);
            seen.extend(page.entries.into_iter().map(|entry| entry.request_id.replacen("request-", "", 1)));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, whole, "in pages of {limit}");
    }
}

/// Trims until nothing is left to do; returns the numbers of deleted entries and events, and of batches.
async fn trim(store: &dyn Store, command: TrimHistory) -> (u64, u64, u32) {
    let (mut entries, mut events, mut batches) = (0, 0, 0);
    loop {
        let trimmed = store.trim_history(command).await.unwrap();
        if trimmed.is_empty() {
            return (entries, events, batches);
        }
        assert!(trimmed.entries.max(trimmed.events) <= u64::from(command.batch), "{trimmed:?}");
        entries += trimmed.entries;
        events += trimmed.events;
        batches += 1;
    }
}

const PLENTY: u64 = 1 << 40;

pub async fn what_is_too_old_goes(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    store.record_audit(in_order((0..10).map(|step| entry(Some(account), step)).collect())).await.unwrap();
    for step in 0..6 {
        let mut boot = boot(vec![booted(account, 3)]);
        boot.at = moment(step);
        store.record_boots(boot).await.unwrap();
    }
    let command = TrimHistory { before: moment(-1), bytes: PLENTY, batch: 2 };
    assert_eq!(trim(&*store, command).await, (0, 0, 0), "nothing is that old");
    let command = TrimHistory { before: moment(5), ..command };
    assert_eq!(trim(&*store, command).await, (5, 5, 3), "two at once");
    assert_eq!(steps(&*store, query(account, false)).await, ["9", "8", "7", "6", "5"]);
    let left = all_events(&*store).await;
    assert_eq!(left.iter().map(|event| event.at).collect::<Vec<_>>(), [moment(5)]);
    let next = {
        store.record_boots(boot(vec![booted(account, 4)])).await.unwrap();
        all_events(&*store).await.pop().unwrap().sequence
    };
    assert!(next > left[0].sequence, "a sequence never comes again");
}

pub async fn what_is_too_much_goes_oldest_first(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    store.record_audit(in_order((0..300).map(|step| entry(Some(account), step)).collect())).await.unwrap();
    store.record_boots(boot((2..250).map(|pid| booted(account, pid)).collect())).await.unwrap();
    let command = TrimHistory { before: moment(-1), bytes: 60_000, batch: 7 };
    let (entries, events, _) = trim(&*store, command).await;
    let left = steps(&*store, query(account, false)).await;
    assert_eq!(left.len() as u64, 300 - entries);
    // 30,000 bytes each: a row takes some hundred bytes, including indexes.
    assert!((50..200).contains(&left.len()), "{}", left.len());
    let newest: Vec<String> = (entries..300).rev().map(|step| step.to_string()).collect();
    assert_eq!(left, newest, "the oldest went");
    let kept = all_events(&*store).await;
    assert_eq!(kept.len() as u64, 248 - events);
    assert!((50..200).contains(&kept.len()), "{}", kept.len());
    assert_eq!(trim(&*store, command).await, (0, 0, 0));
    // Deleted rows are no longer counted, so that new ones fit.
    assert_eq!(trim(&*store, TrimHistory { bytes: 0, ..command }).await.0, left.len() as u64);
    store.record_audit(vec![entry(Some(account), 1_000)]).await.unwrap();
    assert_eq!(trim(&*store, command).await, (0, 0, 0));
    assert_eq!(steps(&*store, query(account, false)).await, ["1000"]);
}

pub async fn a_flood_of_strangers_pushes_out_nothing_but_itself(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    store.record_audit(in_order((0..20).map(|step| entry(Some(account), step)).collect())).await.unwrap();
    let command = TrimHistory { before: moment(-1), bytes: 60_000, batch: 5 };
    for wave in 0..5 {
        let flood = (0..400).map(|step| entry(None, 1_000 + 400 * wave + step)).collect();
        store.record_audit(in_order(flood)).await.unwrap();
        let (gone, ..) = trim(&*store, command).await;
        assert!(gone >= 300, "{gone} of wave {wave}");
    }
    let own = steps(&*store, query(account, false)).await;
    assert_eq!(own.len(), 20, "those of the account are all there");
    let all: BTreeSet<String> = steps(&*store, query(account, true)).await.into_iter().collect();
    assert!(all.len() < 50, "{}", all.len());
    assert!(all.contains("2999"), "the newest of the flood is there");
}

pub async fn an_account_with_much_history_pushes_out_its_own_only(store: Arc<dyn Store>) {
    let (greedy, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    // The oldest are those of the other account.
    store.record_audit(in_order((0..20).map(|step| entry(Some(other), step)).collect())).await.unwrap();
    store.record_boots(boot((2..22).map(|pid| booted(other, pid)).collect())).await.unwrap();
    store
        .record_audit(in_order((0..400).map(|step| entry(Some(greedy), 100 + step)).collect()))
        .await
        .unwrap();
    store.record_boots(boot((100..500).map(|pid| booted(greedy, pid)).collect())).await.unwrap();
    let of = async |account| {
        let events = all_events(&*store).await;
        let sequences = events.iter().filter(|event| event.account == account);
        let sequences: Vec<u64> = sequences.map(|event| event.sequence).collect();
        (steps(&*store, query(account, false)).await.len(), sequences)
    };
    let before = [of(greedy).await.1, of(other).await.1];
    let command = TrimHistory { before: moment(-1), bytes: 60_000, batch: 7 };
    trim(&*store, command).await;
    let [(entries, events), others] = [of(greedy).await, of(other).await];
    assert_eq!((others.0, &others.1), (20, &before[1]), "those of the other account are all there");
    assert!((20..200).contains(&entries) && (20..200).contains(&events.len()), "{entries} {}", events.len());
    assert_eq!(events, before[0][400 - events.len()..], "the oldest of the account went");
    // Each account knows from where on it has all of its events.
    let oldest = async |scope| store.event_span(scope).await.unwrap().oldest;
    assert_eq!(oldest(EventScope::Account(greedy)).await, events[0]);
    assert!(oldest(EventScope::Account(other)).await <= before[1][0]);
    assert_eq!(oldest(EventScope::All).await, before[1][0]);
    // What is old goes by its age, whosever it is.
    trim(&*store, TrimHistory { before: moment(1_000_000), ..command }).await;
    assert_eq!([of(greedy).await, of(other).await], [(0, Vec::new()), (0, Vec::new())]);
    store.record_boots(boot(vec![booted(other, 600)])).await.unwrap();
    let left = of(other).await.1;
    for scope in [EventScope::Account(greedy), EventScope::Account(other), EventScope::All] {
        assert_eq!(oldest(scope).await, left[0], "{scope:?}");
    }
}

pub async fn pages_of_long_audit_entries_end_by_their_bytes(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut written = entries(account, 20, 0);
    for new in &mut written {
        new.entry.resource = Some("x".repeat(1 << 20));
    }
    let (count, mut seen, mut before) = (written.len(), 0, None);
    store.record_audit(written).await.unwrap();
    for _ in 0..count {
        let page = store.list_audit(ListAudit { before, ..query(account, true) }).await.unwrap();
        assert!(json_len(&page.entries) <= MAX_ANSWER_BYTES);
        seen += page.entries.len();
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, count);
}
