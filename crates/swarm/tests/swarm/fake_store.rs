//! A fake store that records only boots, names and ends of VMs, and fails on demand.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use skep_accounts::{KeyHash, SessionHash};
use skep_api::{
    AccountId, KeyId, TicketId, VmId, WebhookId,
    events::EventId,
    swarm::{BootAnswer, EndReason},
    tickets::{Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Ticket, Why},
    waitlist::WaitlistEntry,
    webhooks::{Delivery, DisabledReason},
};
use skep_store::{
    Account, AccountDeleted, AccountPage, AccountRoot, Answered, AppendLog, AuditPage, BeatTicket,
    ChangeAccount, ChangeTicket, ChangeVm, ChangeWebhook, ClaimTickets, CreateAccount, CreateTickets,
    CreateWebhook, DeleteAccount, DeleteTicket, DeleteWebhook, DeliveryPage, DueDelivery, DueWebhook,
    EndAttempt, EndVms, Ended, EnqueueDeliveries, Enqueued, EnsureAdminKey, EnsureDefaultAccount, Error,
    Event, EventPage, EventSpan, GitCredential, IdempotentRequest, JoinWaitlist, KeyPage, KeyRecord, KeyUse,
    ListAccounts, ListAudit, ListDeliveries, ListDue, ListKeys, ListTickets, ListVms, ListWaitlist,
    ListWebhooks, LogPage, LogPosition, NewAuditEntry, NewKey, NewSession, OpenAttempt, PresentedKey,
    PresentedSession, ReadEvents, ReadLog, ReadTicketHistory, RecordAttempt, RecordBoots, RecordCommandEnd,
    RecordEnd, Redeliver, RemoveFromWaitlist, Result, RevokeAllKeys, RevokeKey, RotateKey, RotateWebhook,
    SetAccountRoots, SetGitCredential, Store, TestWebhook, TicketHistoryPage, TicketMetrics, TicketPage,
    TicketSignal, TicketWithSpan, TrimHistory, Trimmed, VmBooted, VmEnd, VmMetrics, VmPage, VmRecord,
    VmWithoutAttempt, WaitingTicket, WaitlistPage, WakeTicket, Webhook, WebhookPage,
};
use tokio::sync::{broadcast, watch};

#[derive(Default)]
pub(crate) struct FakeStore {
    fails: AtomicBool,
    alive: Mutex<Vec<VmBooted>>,
    ends: Mutex<Vec<(VmId, EndReason)>>,
}

impl FakeStore {
    pub(crate) fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    pub(crate) fn alive(&self) -> Vec<VmId> {
        self.alive.lock().unwrap().iter().map(|vm| vm.id).collect()
    }

    pub(crate) fn forget(&self, vm: VmId) {
        self.alive.lock().unwrap().retain(|alive| alive.id != vm);
    }

    pub(crate) fn ends(&self) -> Vec<(VmId, EndReason)> {
        self.ends.lock().unwrap().clone()
    }

    fn result_or_failure<T>(&self, value: T) -> Result<T> {
        let failed = Error::UnknownAccount { account: "a test".to_owned() };
        if self.fails.load(Ordering::Relaxed) { Err(failed) } else { Ok(value) }
    }
}

#[async_trait]
impl Store for FakeStore {
    async fn record_boots(&self, command: RecordBoots) -> Result<()> {
        self.result_or_failure(())?;
        self.alive.lock().unwrap().extend(command.vms);
        Ok(())
    }

    async fn record_command_end(&self, _: RecordCommandEnd) -> Result<()> {
        unreachable!()
    }
    async fn record_end(&self, command: RecordEnd) -> Result<Ended> {
        self.result_or_failure(())?;
        self.ends.lock().unwrap().push((command.vm, command.reason));
        let mut alive = self.alive.lock().unwrap();
        let vm = alive.iter().position(|vm| vm.id == command.vm).map(|at| alive.swap_remove(at));
        let end = Some(VmEnd { at: command.at, reason: command.reason });
        Ok(Ended {
            record: VmRecord { vm: vm.ok_or(Error::UnknownVm { vm: command.vm })?, command_runs: false, end },
            first: true,
        })
    }

    async fn append_log(&self, _: AppendLog) -> Result<()> {
        unreachable!()
    }
    async fn log_position(&self, _: VmId) -> Result<LogPosition> {
        unreachable!()
    }
    async fn read_log(&self, _: ReadLog) -> Result<LogPage> {
        unreachable!()
    }
    async fn vms_without_attempt(&self) -> Result<Vec<VmWithoutAttempt>> {
        unreachable!()
    }

    async fn stored_boot_answer(
        &self,
        _: AccountId,
        _: IdempotentRequest,
        _: Timestamp,
    ) -> Result<Option<BootAnswer>> {
        unreachable!()
    }

    /// Changes only names.
    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord> {
        self.result_or_failure(())?;
        let mut alive = self.alive.lock().unwrap();
        let vm =
            alive.iter_mut().find(|vm| vm.id == command.vm).ok_or(Error::UnknownVm { vm: command.vm })?;
        vm.name = command.name.unwrap_or_else(|| vm.name.clone());
        Ok(VmRecord { vm: vm.clone(), command_runs: false, end: None })
    }

    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>> {
        self.result_or_failure(())?;
        self.ends.lock().unwrap().extend(command.vms.iter().map(|vm| (*vm, command.reason)));
        self.alive.lock().unwrap().retain(|vm| !command.vms.contains(&vm.id));
        Ok(Vec::new())
    }

    async fn list_vms(&self, _: ListVms) -> Result<VmPage> {
        unreachable!()
    }
    async fn running_vms(&self) -> Result<Vec<VmRecord>> {
        let alive = self.alive.lock().unwrap().clone().into_iter();
        self.result_or_failure(alive.map(|vm| VmRecord { vm, command_runs: false, end: None }).collect())
    }

    async fn ensure_default_account(&self, _: EnsureDefaultAccount) -> Result<Account> {
        unreachable!()
    }
    async fn set_account_roots(&self, _: SetAccountRoots) -> Result<Account> {
        unreachable!()
    }
    async fn account(&self, _: AccountId) -> Result<Account> {
        unreachable!()
    }
    async fn account_by_name(&self, _: &str) -> Result<Account> {
        unreachable!()
    }
    async fn roots_of_other_accounts(&self, _: &str) -> Result<Vec<AccountRoot>> {
        unreachable!()
    }
    async fn create_account(&self, _: CreateAccount) -> Result<Account> {
        unreachable!()
    }
    async fn change_account(&self, _: ChangeAccount) -> Result<Account> {
        unreachable!()
    }
    async fn delete_account(&self, _: DeleteAccount) -> Result<AccountDeleted> {
        unreachable!()
    }
    async fn list_accounts(&self, _: ListAccounts) -> Result<AccountPage> {
        unreachable!()
    }
    async fn ensure_admin_key(&self, _: EnsureAdminKey) -> Result<KeyRecord> {
        unreachable!()
    }
    async fn create_key(&self, _: NewKey) -> Result<KeyRecord> {
        unreachable!()
    }
    async fn revoke_key(&self, _: RevokeKey) -> Result<KeyRecord> {
        unreachable!()
    }
    async fn rotate_key(&self, _: RotateKey) -> Result<KeyRecord> {
        unreachable!()
    }
    async fn revoke_all_keys(&self, _: RevokeAllKeys) -> Result<u32> {
        unreachable!()
    }
    fn revocations(&self) -> broadcast::Receiver<KeyId> {
        unreachable!()
    }
    async fn key(&self, _: AccountId, _: KeyId) -> Result<KeyRecord> {
        unreachable!()
    }
    async fn list_keys(&self, _: ListKeys) -> Result<KeyPage> {
        unreachable!()
    }
    async fn key_by_hash(&self, _: KeyHash) -> Result<Option<PresentedKey>> {
        unreachable!()
    }
    async fn record_key_uses(&self, _: Vec<KeyUse>) -> Result<()> {
        unreachable!()
    }
    async fn events_after(&self, _: u64, _: u32) -> Result<Vec<Event>> {
        unreachable!()
    }
    async fn set_git_credential(&self, _: SetGitCredential) -> Result<()> {
        unreachable!()
    }
    async fn git_credentials(&self, _: AccountId) -> Result<Vec<GitCredential>> {
        unreachable!()
    }
    async fn remove_git_credential(&self, _: AccountId, _: &str) -> Result<bool> {
        unreachable!()
    }
    async fn read_events(&self, _: ReadEvents) -> Result<EventPage> {
        unreachable!()
    }
    async fn vm_metrics(&self) -> Result<Vec<VmMetrics>> {
        unreachable!()
    }
    async fn event_position(&self, _: Timestamp) -> Result<EventId> {
        unreachable!()
    }
    async fn event_span(&self) -> Result<EventSpan> {
        unreachable!()
    }
    async fn ticket_with_span(&self, _: AccountId, _: TicketId, _: Timestamp) -> Result<TicketWithSpan> {
        unreachable!()
    }
    fn commits(&self) -> watch::Receiver<u64> {
        unreachable!()
    }
    async fn join_waitlist(&self, _: JoinWaitlist) -> Result<()> {
        unreachable!()
    }
    async fn list_waitlist(&self, _: ListWaitlist) -> Result<WaitlistPage> {
        unreachable!()
    }
    async fn remove_from_waitlist(&self, _: RemoveFromWaitlist) -> Result<WaitlistEntry> {
        unreachable!()
    }
    async fn record_audit(&self, _: Vec<NewAuditEntry>) -> Result<()> {
        unreachable!()
    }
    async fn list_audit(&self, _: ListAudit) -> Result<AuditPage> {
        unreachable!()
    }
    async fn trim_history(&self, _: TrimHistory) -> Result<Trimmed> {
        unreachable!()
    }
    async fn create_session(&self, _: NewSession) -> Result<()> {
        unreachable!()
    }
    async fn session(&self, _: SessionHash) -> Result<Option<PresentedSession>> {
        unreachable!()
    }
    async fn end_session(&self, _: SessionHash) -> Result<bool> {
        unreachable!()
    }
    async fn create_tickets(&self, _: CreateTickets) -> Result<Answered<CreatedTickets>> {
        unreachable!()
    }
    async fn change_ticket(&self, _: ChangeTicket) -> Result<Ticket> {
        unreachable!()
    }
    async fn beat_ticket(&self, _: BeatTicket) -> Result<Beat> {
        unreachable!()
    }
    async fn claim_tickets(&self, _: ClaimTickets) -> Result<Answered<ClaimedTickets>> {
        unreachable!()
    }
    async fn delete_ticket(&self, _: DeleteTicket) -> Result<DeletedTicket> {
        unreachable!()
    }
    async fn end_attempt(&self, _: EndAttempt) -> Result<bool> {
        unreachable!()
    }
    async fn wake_ticket(&self, _: WakeTicket) -> Result<bool> {
        unreachable!()
    }
    async fn ticket_of_vm(&self, _: AccountId, _: VmId, _: TicketId, _: Timestamp) -> Result<Ticket> {
        unreachable!()
    }
    async fn ticket(&self, _: AccountId, _: TicketId, _: Timestamp) -> Result<Ticket> {
        unreachable!()
    }
    async fn list_tickets(&self, _: ListTickets) -> Result<TicketPage> {
        unreachable!()
    }
    async fn ticket_history(&self, _: ReadTicketHistory) -> Result<TicketHistoryPage> {
        unreachable!()
    }
    async fn ticket_metrics(&self, _: Option<AccountId>) -> Result<Vec<TicketMetrics>> {
        unreachable!()
    }
    async fn why_ticket(&self, _: AccountId, _: TicketId, _: Timestamp) -> Result<Why> {
        unreachable!()
    }
    async fn restart_leases(&self, _: Timestamp) -> Result<()> {
        unreachable!()
    }
    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>> {
        unreachable!()
    }
    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>> {
        unreachable!()
    }
    fn ticket_signals(&self) -> broadcast::Receiver<TicketSignal> {
        unreachable!()
    }
    async fn create_webhook(&self, _: CreateWebhook) -> Result<Webhook> {
        unreachable!()
    }
    async fn change_webhook(&self, _: ChangeWebhook) -> Result<Webhook> {
        unreachable!()
    }
    async fn rotate_webhook(&self, _: RotateWebhook) -> Result<Webhook> {
        unreachable!()
    }
    async fn delete_webhook(&self, _: DeleteWebhook) -> Result<()> {
        unreachable!()
    }
    async fn webhook(&self, _: AccountId, _: WebhookId) -> Result<Webhook> {
        unreachable!()
    }
    async fn list_webhooks(&self, _: ListWebhooks) -> Result<WebhookPage> {
        unreachable!()
    }
    async fn list_deliveries(&self, _: ListDeliveries) -> Result<DeliveryPage> {
        unreachable!()
    }
    async fn redeliver(&self, _: Redeliver) -> Result<Delivery> {
        unreachable!()
    }
    async fn test_webhook(&self, _: TestWebhook) -> Result<Delivery> {
        unreachable!()
    }
    async fn enqueue_deliveries(&self, _: EnqueueDeliveries) -> Result<Enqueued> {
        unreachable!()
    }
    async fn due_webhooks(&self) -> Result<Vec<DueWebhook>> {
        unreachable!()
    }
    async fn due_deliveries(&self, _: ListDue) -> Result<Vec<DueDelivery>> {
        unreachable!()
    }
    async fn record_attempt(&self, _: RecordAttempt) -> Result<Option<DisabledReason>> {
        unreachable!()
    }
    async fn ping(&self, _: Duration) -> Result<()> {
        unreachable!()
    }
}
