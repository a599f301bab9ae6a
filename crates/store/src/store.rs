//! The trait [`Store`].

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use skep_accounts::{KeyHash, SessionHash};
use skep_api::{
    AccountId, KeyId, TicketId, VmId, WebhookId,
    events::EventId,
    swarm::BootAnswer,
    tickets::{Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Ticket, Why},
    waitlist::WaitlistEntry,
    webhooks::{Delivery, DisabledReason},
};
use tokio::sync::{broadcast, watch};

use crate::{
    Account, AccountDeleted, AccountPage, AccountRoot, Answered, AppendLog, AuditPage, BeatTicket,
    ChangeAccount, ChangeTicket, ChangeVm, ChangeWebhook, ClaimTickets, CreateAccount, CreateTickets,
    CreateWebhook, DeleteAccount, DeleteTicket, DeleteWebhook, DeliveryPage, DueDelivery, DueWebhook,
    EndAttempt, EndVms, Ended, EnqueueDeliveries, Enqueued, EnsureAdminKey, EnsureDefaultAccount, Event,
    EventPage, EventSpan, GitCredential, IdempotentRequest, JoinWaitlist, KeyPage, KeyRecord, KeyUse,
    ListAccounts, ListAudit, ListDeliveries, ListDue, ListKeys, ListTickets, ListVms, ListWaitlist,
    ListWebhooks, LogPage, LogPosition, NewAuditEntry, NewKey, NewSession, OpenAttempt, PresentedKey,
    PresentedSession, ReadEvents, ReadLog, ReadTicketHistory, RecordAttempt, RecordBoots, RecordCommandEnd,
    RecordEnd, Redeliver, RemoveFromWaitlist, Result, RevokeAllKeys, RevokeKey, RotateKey, RotateWebhook,
    SetAccountRoots, SetGitCredential, TestWebhook, TicketHistoryPage, TicketMetrics, TicketPage,
    TicketSignal, TicketWithSpan, TrimHistory, Trimmed, VmMetrics, VmPage, VmRecord, VmWithoutAttempt,
    WaitingTicket, WaitlistPage, WakeTicket, Webhook, WebhookPage,
};

/// Persistent state of the server.
///
/// A command that returned `Ok` is durable, with its events; a failed one changed nothing. A command that has been queued
/// is executed even if its future is dropped. Every method can fail with `Unavailable` or `Internal`; the documentation of
/// each method names further errors.
#[async_trait]
#[warn(missing_docs)]
pub trait Store: Send + Sync {
    /// Returns the account `default`, and creates it if it does not exist.
    async fn ensure_default_account(&self, command: EnsureDefaultAccount) -> Result<Account>;
    /// Replaces the roots of an account; fails with `UnknownAccount`, `RootTaken`.
    async fn set_account_roots(&self, command: SetAccountRoots) -> Result<Account>;
    /// Returns an account; fails with `UnknownAccount`.
    async fn account(&self, id: AccountId) -> Result<Account>;
    /// Returns an account by name; fails with `UnknownAccount`.
    async fn account_by_name(&self, name: &str) -> Result<Account>;
    /// Returns the roots of all accounts except the one with this name, which need not exist.
    async fn roots_of_other_accounts(&self, name: &str) -> Result<Vec<AccountRoot>>;
    /// Creates an account; fails with `AccountNameTaken`, `RootTaken`.
    async fn create_account(&self, command: CreateAccount) -> Result<Account>;
    /// Changes the mutable fields of an account; fails with `UnknownAccount`, `RootTaken`.
    async fn change_account(&self, command: ChangeAccount) -> Result<Account>;
    /// Deletes an account; fails with `UnknownAccount`, `DefaultAccountStays`, `AccountInUse`.
    async fn delete_account(&self, command: DeleteAccount) -> Result<AccountDeleted>;
    /// Returns a page of accounts, newest first.
    async fn list_accounts(&self, query: ListAccounts) -> Result<AccountPage>;

    /// Returns the admin key with this hash, and creates it if needed; fails with `UnknownAccount` if there is no
    /// account `default`.
    async fn ensure_admin_key(&self, command: EnsureAdminKey) -> Result<KeyRecord>;
    /// Creates a key; fails with `NameTaken`, `UnknownAccount`, `UnknownVm`.
    async fn create_key(&self, command: NewKey) -> Result<KeyRecord>;
    /// Revokes a key. For a key that is revoked already it only returns the record. Fails with `UnknownKey`.
    async fn revoke_key(&self, command: RevokeKey) -> Result<KeyRecord>;
    /// Creates a key that replaces an existing one and takes its name; fails with `UnknownKey`, `KeyNotValid`.
    async fn rotate_key(&self, command: RotateKey) -> Result<KeyRecord>;
    /// Revokes the keys of an account and returns their number; fails with `UnknownAccount`.
    async fn revoke_all_keys(&self, command: RevokeAllKeys) -> Result<u32>;
    /// Subscribes to the ids of keys that this store revokes for any reason, sent once the revocation is durable.
    /// Revocations by other processes are not included.
    fn revocations(&self) -> broadcast::Receiver<KeyId>;
    /// Returns a key of this account; fails with `UnknownKey`.
    async fn key(&self, account: AccountId, id: KeyId) -> Result<KeyRecord>;
    /// Returns a page of an account's keys, including revoked ones, newest first.
    async fn list_keys(&self, query: ListKeys) -> Result<KeyPage>;
    /// Returns the key with this hash, whether or not it is valid.
    async fn key_by_hash(&self, hash: KeyHash) -> Result<Option<PresentedKey>>;
    /// Records when keys were last used; unknown keys are ignored.
    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> Result<()>;

    /// Creates a session; fails with `UnknownKey`. A key has at most a hundred sessions; beyond that the oldest one is
    /// ended.
    async fn create_session(&self, command: NewSession) -> Result<()>;
    /// Returns the session with this hash, whether or not it is valid.
    async fn session(&self, hash: SessionHash) -> Result<Option<PresentedSession>>;
    /// Ends a session; returns whether it existed.
    async fn end_session(&self, hash: SessionHash) -> Result<bool>;

    /// Records VMs that were booted together; fails with `UnknownAccount`, and for a ticket with `UnknownTicket`,
    /// `NameTaken`, and with `Ticket` if its attempt has ended meanwhile.
    async fn record_boots(&self, command: RecordBoots) -> Result<()>;
    /// Returns the stored answer of an earlier boot with the same idempotency key; fails with `IdempotencyMismatch`.
    async fn stored_boot_answer(
        &self,
        account: AccountId,
        once: IdempotentRequest,
        at: Timestamp,
    ) -> Result<Option<BootAnswer>>;
    /// Changes the mutable fields of a running VM and returns its record; fails with `UnknownVm`.
    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord>;
    /// Records the end of a VM, the first time; fails with `UnknownVm`.
    async fn record_end(&self, command: RecordEnd) -> Result<Ended>;
    /// Records the end of the command that a VM was booted with, the first time, and applies the outcome to the ticket
    /// that the VM holds; fails with `UnknownVm`.
    async fn record_command_end(&self, command: RecordCommandEnd) -> Result<()>;
    /// Records the end of those of these VMs that still run, and returns their records in the order of the command.
    /// Unknown VMs are ignored.
    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>>;
    /// Returns the running VMs of all accounts, oldest first.
    async fn running_vms(&self) -> Result<Vec<VmRecord>>;
    /// Returns the VMs of all accounts that still run although their attempt at a ticket has ended, except those to be
    /// kept.
    async fn vms_without_attempt(&self) -> Result<Vec<VmWithoutAttempt>>;
    /// Returns a page of an account's VMs. Records of ended VMs are kept for as long as events are, at most 100,000 of
    /// them.
    async fn list_vms(&self, query: ListVms) -> Result<VmPage>;

    /// Appends output of a VM's command to its log, if it has one, and deletes the oldest chunks beyond the limits.
    async fn append_log(&self, command: AppendLog) -> Result<()>;
    /// Returns how far the output of a VM's command was read; zero if nothing is recorded.
    async fn log_position(&self, vm: VmId) -> Result<LogPosition>;
    /// Returns part of a log; fails with `UnknownTicket`, `UnknownLog`.
    async fn read_log(&self, query: ReadLog) -> Result<LogPage>;

    /// Creates tickets, all of them or none; fails with `UnknownAccount`, `UnknownDependency`, `IdempotencyMismatch`.
    async fn create_tickets(&self, command: CreateTickets) -> Result<Answered<CreatedTickets>>;
    /// Changes a ticket and returns its record; fails with `UnknownTicket`, `VersionStale`, `UnknownDependency`,
    /// `VmKeyLimited`, and with `Ticket` if the transition rules refuse the change.
    async fn change_ticket(&self, command: ChangeTicket) -> Result<Ticket>;
    /// Renews a lease; fails with `UnknownTicket`, and with `Ticket` if the lease is lost.
    async fn beat_ticket(&self, command: BeatTicket) -> Result<Beat>;
    /// Claims ready tickets, possibly none; fails with `IdempotencyMismatch`. Concurrent calls get different tickets.
    async fn claim_tickets(&self, command: ClaimTickets) -> Result<Answered<ClaimedTickets>>;
    /// Deletes a ticket; fails with `UnknownTicket`, `VersionStale`, `TicketHeld`, `HasDependents`.
    async fn delete_ticket(&self, command: DeleteTicket) -> Result<DeletedTicket>;
    /// Ends an attempt whose timer fired; returns whether it was ended.
    async fn end_attempt(&self, command: EndAttempt) -> Result<bool>;
    /// Marks a ticket's `not_before` as passed; returns whether that changed anything.
    async fn wake_ticket(&self, command: WakeTicket) -> Result<bool>;
    /// Returns a ticket of this account; fails with `UnknownTicket`.
    async fn ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Ticket>;
    /// Returns a ticket that this VM holds or held, or a direct dependency of such a ticket; fails with
    /// `UnknownTicket`.
    async fn ticket_of_vm(&self, account: AccountId, vm: VmId, id: TicketId, at: Timestamp)
    -> Result<Ticket>;
    /// Returns a page of an account's tickets.
    async fn list_tickets(&self, query: ListTickets) -> Result<TicketPage>;
    /// Returns a page of the history of a ticket, which may be deleted; fails with `UnknownTicket`.
    async fn ticket_history(&self, query: ReadTicketHistory) -> Result<TicketHistoryPage>;
    /// Returns why a ticket is not ready or not progressing; fails with `UnknownTicket`.
    async fn why_ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Why>;
    /// Extends every open lease to its full length from `at`. The server does so when it starts, so that the expiry
    /// that callers read matches its timers. Does not count as a renewal, writes no event and keeps versions.
    async fn restart_leases(&self, at: Timestamp) -> Result<()>;
    /// Returns the open attempts of all accounts.
    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>>;
    /// Returns metrics about the tickets of one account or of all. The cost does not depend on the number of tickets.
    async fn ticket_metrics(&self, account: Option<AccountId>) -> Result<Vec<TicketMetrics>>;
    /// Returns metrics about running VMs for each account.
    async fn vm_metrics(&self) -> Result<Vec<VmMetrics>>;
    /// Returns the tickets of all accounts whose `not_before` is in the future.
    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>>;
    /// Subscribes to changes that timers and waiting claims react to, sent once they are durable. A receiver that lags
    /// must read [`open_attempts`](Self::open_attempts) and [`waiting_tickets`](Self::waiting_tickets) again.
    fn ticket_signals(&self) -> broadcast::Receiver<TicketSignal>;

    /// Returns at most `limit` events of all accounts after this sequence, in order; 0 includes the first event.
    async fn events_after(&self, sequence: u64, limit: u32) -> Result<Vec<Event>>;
    /// Returns a page of events.
    async fn read_events(&self, query: ReadEvents) -> Result<EventPage>;
    /// Returns the position just before the first event at or after this time, or the newest position if there is none.
    /// The cost hardly depends on the number of events. If the clock was set back, the position may be that of a later
    /// such event.
    async fn event_position(&self, since: Timestamp) -> Result<EventId>;
    /// Returns the range of stored events.
    async fn event_span(&self) -> Result<EventSpan>;
    /// Returns a ticket of this account and the range of events that its state reflects; fails with `UnknownTicket`.
    async fn ticket_with_span(
        &self,
        account: AccountId,
        id: TicketId,
        at: Timestamp,
    ) -> Result<TicketWithSpan>;
    /// A counter that changes after each durable commit of this store that may have written events. Commits by other
    /// processes are not included.
    fn commits(&self) -> watch::Receiver<u64>;

    /// Stores a git credential; fails with `UnknownAccount`.
    async fn set_git_credential(&self, command: SetGitCredential) -> Result<()>;
    /// Returns the git credentials of an account, ordered by host.
    async fn git_credentials(&self, account: AccountId) -> Result<Vec<GitCredential>>;
    /// Deletes a git credential; returns whether it existed.
    async fn remove_git_credential(&self, account: AccountId, host: &str) -> Result<bool>;

    /// Adds an address to the waitlist. The work is the same for an address that is on it already, so that response
    /// times do not reveal whether it is.
    async fn join_waitlist(&self, command: JoinWaitlist) -> Result<()>;
    /// Returns a page of the waitlist, newest first, each address once.
    async fn list_waitlist(&self, query: ListWaitlist) -> Result<WaitlistPage>;
    /// Removes an address with everything that was submitted with it; fails with `UnknownWaitlistEntry`.
    async fn remove_from_waitlist(&self, command: RemoveFromWaitlist) -> Result<WaitlistEntry>;

    /// Writes audit entries; entries whose id exists already are ignored.
    async fn record_audit(&self, entries: Vec<NewAuditEntry>) -> Result<()>;
    /// Returns a page of the audit log, newest first.
    async fn list_audit(&self, query: ListAudit) -> Result<AuditPage>;
    /// Deletes one batch of the oldest audit entries and events beyond the retention limits, and returns how many.
    async fn trim_history(&self, command: TrimHistory) -> Result<Trimmed>;

    /// Creates a webhook; fails with `UnknownAccount`, `TooManyWebhooks`.
    async fn create_webhook(&self, command: CreateWebhook) -> Result<Webhook>;
    /// Changes the mutable fields of a webhook; fails with `UnknownWebhook`.
    async fn change_webhook(&self, command: ChangeWebhook) -> Result<Webhook>;
    /// Replaces the secret of a webhook; fails with `UnknownWebhook`.
    async fn rotate_webhook(&self, command: RotateWebhook) -> Result<Webhook>;
    /// Deletes a webhook; fails with `UnknownWebhook`.
    async fn delete_webhook(&self, command: DeleteWebhook) -> Result<()>;
    /// Returns a webhook of this account; fails with `UnknownWebhook`.
    async fn webhook(&self, account: AccountId, id: WebhookId) -> Result<Webhook>;
    /// Returns a page of an account's webhooks, newest first.
    async fn list_webhooks(&self, query: ListWebhooks) -> Result<WebhookPage>;
    /// Returns a page of a webhook's deliveries, newest first; fails with `UnknownWebhook`.
    async fn list_deliveries(&self, query: ListDeliveries) -> Result<DeliveryPage>;
    /// Schedules a delivery again; fails with `UnknownWebhook`, `UnknownDelivery`, `WebhookDisabled`.
    async fn redeliver(&self, command: Redeliver) -> Result<Delivery>;
    /// Schedules a test delivery; fails with `UnknownWebhook`, `WebhookDisabled`.
    async fn test_webhook(&self, command: TestWebhook) -> Result<Delivery>;
    /// Creates deliveries for one batch of events that enabled webhooks have not processed yet.
    async fn enqueue_deliveries(&self, command: EnqueueDeliveries) -> Result<Enqueued>;
    /// Returns the enabled webhooks of all accounts.
    async fn due_webhooks(&self) -> Result<Vec<DueWebhook>>;
    /// Returns the deliveries of a webhook that are due, in order of their due time.
    async fn due_deliveries(&self, query: ListDue) -> Result<Vec<DueDelivery>>;
    /// Records an attempt at a delivery; fails with `UnknownDelivery`. Returns a reason if this disabled the webhook.
    async fn record_attempt(&self, command: RecordAttempt) -> Result<Option<DisabledReason>>;

    /// Checks that the store executes commands and queries; fails with `Unavailable` if that takes longer than `limit`.
    async fn ping(&self, limit: Duration) -> Result<()>;
}
