//! Tests of logs of commands.

use std::sync::Arc;

use skep_api::{AccountId, ErrorCode, TicketId, swarm::EndReason};
use skep_tickets::{Command, Release};

use super::{
    account_named, boot, booted, default_account, end, moment, new_key,
    tickets::{call, change, claim, create_ticket},
};
use crate::{
    AppendLog, BootAttempt, CommandOutcome, DeleteTicket, Dependents, LogPage, LogPosition,
    MAX_ACCOUNT_LOG_BYTES, MIN_LOG_BYTES, ReadLog, RecordBoots, RecordCommandEnd, Store, TrimHistory,
    VmBooted,
};

/// A VM that was booted with a command for a ticket of this account.
async fn run(store: &dyn Store, account: AccountId, ticket: TicketId, attempt: u32, number: u8) -> VmBooted {
    store.change_ticket(change(account, ticket, claim("booter", None))).await.unwrap();
    let pid = u32::from(number);
    let exec_id = Some(format!("exec_{pid}"));
    let vm = VmBooted { ticket: Some(ticket), exec_id, ..booted(account, pid) };
    let key = new_key(account, &format!("of vm {pid}"), number);
    let work = Some(BootAttempt { ticket, attempt, key, keep_vm: false });
    store.record_boots(RecordBoots { attempt: work, ..boot(vec![vm.clone()]) }).await.unwrap();
    vm
}

async fn append(store: &dyn Store, vm: &VmBooted, bytes: Vec<u8>, stdout: u64) {
    let position = LogPosition { stdout, stderr: 7 };
    store.append_log(AppendLog { vm: vm.id, bytes, position }).await.unwrap();
}

fn query(vm: &VmBooted) -> ReadLog {
    ReadLog {
        account: vm.account,
        caller_vm: None,
        ticket: vm.ticket.unwrap(),
        attempt: None,
        vm: None,
        offset: 0,
        limit: 16 << 20,
    }
}

async fn read(store: &dyn Store, vm: &VmBooted) -> LogPage {
    store.read_log(ReadLog { vm: Some(vm.id), ..query(vm) }).await.unwrap()
}

/// Bytes whose values depend on their position.
fn pattern(from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

async fn refused(store: &dyn Store, query: ReadLog) -> ErrorCode {
    store.read_log(query).await.unwrap_err().code()
}

pub async fn the_end_of_a_log_is_kept_and_read_from_anywhere(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let ticket = create_ticket(&*store, account, vec![]).await;
    let vm = run(&*store, account, ticket, 1, 3).await;
    assert_eq!(store.log_position(vm.id).await.unwrap(), LogPosition::default());
    let empty = read(&*store, &vm).await;
    assert_eq!((empty.bytes.len(), empty.size, empty.running, empty.attempt), (0, 0, true, 1));
    let mut size = 0;
    for count in [1, 5, 70_000, 100, 3 << 20, 65_536, 200_000, 1] {
        append(&*store, &vm, pattern(size, count), size + count).await;
        size += count;
        let page = read(&*store, &vm).await;
        assert_eq!((page.size, page.kept_from, page.offset), (size, 0, 0));
        assert!(page.bytes == pattern(0, size), "{count}");
    }
    assert_eq!(store.log_position(vm.id).await.unwrap(), LogPosition { stdout: size, stderr: 7 });
    for offset in [0, 1, 65_535, 65_536, 65_537, size - 1, size, size + 9] {
        for limit in [1, 1_000, 65_537, 300_000] {
            let page = store.read_log(ReadLog { offset, limit, ..query(&vm) }).await.unwrap();
            let from = offset.min(size);
            let count = (limit as u64).min(size - from);
            assert_eq!(page.offset, from);
            assert!(page.bytes == pattern(from, count), "{offset} {limit}");
        }
    }
    // More bytes than are kept.
    for _ in 0..5 {
        append(&*store, &vm, pattern(size, 1 << 20), size).await;
        size += 1 << 20;
    }
    let page = read(&*store, &vm).await;
    let kept = size - page.kept_from;
    assert!((MIN_LOG_BYTES..MIN_LOG_BYTES + (128 << 10)).contains(&kept), "{kept}");
    assert!(page.offset == page.kept_from && page.bytes == pattern(page.kept_from, kept));
}

pub async fn a_log_belongs_to_an_attempt_and_outlives_vm_and_ticket(store: Arc<dyn Store>) {
    let (account, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let ticket = create_ticket(&*store, account, vec![]).await;
    let first = run(&*store, account, ticket, 1, 3).await;
    append(&*store, &first, b"first".to_vec(), 5).await;
    let outcome = CommandOutcome::AttemptFailed(Default::default());
    store.record_command_end(RecordCommandEnd { vm: first.id, outcome, at: moment(600) }).await.unwrap();
    assert!(!read(&*store, &first).await.running);
    let second = run(&*store, account, ticket, 2, 4).await;
    append(&*store, &second, b"second".to_vec(), 6).await;
    // The latest attempt, unless one is given.
    assert_eq!(store.read_log(query(&first)).await.unwrap().bytes, b"second");
    let of_first = ReadLog { attempt: Some(1), ..query(&first) };
    assert_eq!(store.read_log(of_first).await.unwrap().bytes, b"first");
    // A key that is bound to a VM can read the logs of the ticket of that VM.
    let plain = create_ticket(&*store, account, vec![]).await;
    let alone = run(&*store, account, plain, 1, 5).await;
    let by = Some(second.id);
    assert_eq!(store.read_log(ReadLog { caller_vm: by, ..of_first }).await.unwrap().bytes, b"first");
    assert_eq!(refused(&*store, ReadLog { caller_vm: by, ..query(&alone) }).await, ErrorCode::UnknownTicket);
    // Missing logs and logs of other accounts are refused.
    let third = ReadLog { attempt: Some(3), ..query(&first) };
    assert_eq!(refused(&*store, third).await, ErrorCode::UnknownLog);
    let unknown = ReadLog { ticket: TicketId::generate(), ..query(&first) };
    assert_eq!(refused(&*store, unknown).await, ErrorCode::UnknownTicket);
    assert_eq!(refused(&*store, ReadLog { account: other, ..query(&first) }).await, ErrorCode::UnknownTicket);
    let logless = create_ticket(&*store, account, vec![]).await;
    assert_eq!(refused(&*store, ReadLog { ticket: logless, ..query(&first) }).await, ErrorCode::UnknownLog);
    // The log outlives the VM and the ticket.
    let release = Release { attempt: None, assignee: None, retry_after: None, by_status: true };
    store.change_ticket(change(account, ticket, Command::Release(release))).await.unwrap();
    store.record_end(end(second.id, EndReason::TicketEnded, 700)).await.unwrap();
    let delete = DeleteTicket {
        call: call(account, 800),
        id: ticket,
        expected: None,
        force: true,
        dependents: Dependents::Refuse,
    };
    store.delete_ticket(delete).await.unwrap();
    let page = store.read_log(query(&first)).await.unwrap();
    assert_eq!((page.bytes.as_slice(), page.running), (b"second".as_slice(), false));
    // The log is deleted when it is too old.
    let trim = |step| TrimHistory { before: moment(step), bytes: 1 << 30, batch: 100 };
    let kept = trim(600);
    assert_eq!(store.trim_history(kept).await.unwrap().logs, 0);
    assert_eq!(store.trim_history(trim(601)).await.unwrap().logs, 2, "a piece, and its log");
    assert_eq!(refused(&*store, of_first).await, ErrorCode::UnknownLog);
    assert_eq!(store.read_log(query(&first)).await.unwrap().bytes, b"second");
    store.trim_history(trim(10_000)).await.unwrap();
    assert_eq!(read(&*store, &alone).await.size, 0, "what runs is kept");
    // Later output is ignored.
    append(&*store, &second, b"late".to_vec(), 9).await;
}

pub async fn an_account_fills_the_disk_with_no_logs_and_takes_none_of_anothers(store: Arc<dyn Store>) {
    let (account, other) = (default_account(&*store).await.id, account_named(&*store, "acme").await.id);
    let foreign = create_ticket(&*store, other, vec![]).await;
    let foreign = run(&*store, other, foreign, 1, 1).await;
    append(&*store, &foreign, vec![7; 1 << 20], 1).await;
    let mut vms = Vec::new();
    let count = u8::try_from(MAX_ACCOUNT_LOG_BYTES / MIN_LOG_BYTES).unwrap() + 2;
    for number in 2..2 + count {
        let ticket = create_ticket(&*store, account, vec![]).await;
        let vm = run(&*store, account, ticket, 1, number).await;
        // In one piece, because each piece waits for the disk.
        append(&*store, &vm, vec![number; 4 << 20], 1).await;
        vms.push(vm);
    }
    let mut kept = Vec::new();
    for vm in &vms {
        kept.push(read(&*store, vm).await.bytes.len() as u64);
    }
    let sum: u64 = kept.iter().sum();
    assert!((MAX_ACCOUNT_LOG_BYTES - (8 << 20)..=MAX_ACCOUNT_LOG_BYTES).contains(&sum), "{sum}");
    assert_eq!((kept[0], kept[vms.len() - 1]), (0, MIN_LOG_BYTES), "the oldest go first: {kept:?}");
    // Nothing is left of the first log; further output continues at the right offset.
    let position = read(&*store, &vms[0]).await;
    assert_eq!((position.size, position.kept_from), (4 << 20, 4 << 20));
    append(&*store, &vms[0], b"more".to_vec(), 2).await;
    let page = read(&*store, &vms[0]).await;
    assert_eq!((page.offset, page.bytes.as_slice()), (4 << 20, b"more".as_slice()));
    assert_eq!(read(&*store, &foreign).await.bytes.len(), 1 << 20);
}
