//! What every store can do.

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
    EventPage, EventSpan, GitCredential, JoinWaitlist, KeyPage, KeyRecord, KeyUse, ListAccounts, ListAudit,
    ListDeliveries, ListDue, ListKeys, ListTickets, ListVms, ListWaitlist, ListWebhooks, LogPage,
    LogPosition, NewAuditEntry, NewKey, NewSession, Once, OpenAttempt, PresentedKey, PresentedSession,
    ReadEvents, ReadLog, ReadTicketHistory, RecordAttempt, RecordBoots, RecordCommandEnd, RecordEnd,
    Redeliver, RemoveFromWaitlist, Result, RevokeAllKeys, RevokeKey, RotateKey, RotateWebhook,
    SetAccountRoots, SetGitCredential, TestWebhook, TicketFigures, TicketHistoryPage, TicketNews, TicketNow,
    TicketPage, TrimHistory, Trimmed, VmFigures, VmPage, VmRecord, VmWithoutAttempt, WaitingTicket,
    WaitlistPage, WakeTicket, Webhook, WebhookPage,
};

/// The store. A command that answered is durable, with its events; one that failed left nothing; one whose caller went
/// away is carried out all the same. Every method can fail with `Unavailable` or `Internal`; what else, it says.
#[async_trait]
#[warn(missing_docs)]
pub trait Store: Send + Sync {
    /// The account `default`, made by the first start.
    async fn ensure_default_account(&self, command: EnsureDefaultAccount) -> Result<Account>;
    /// Gives an account other roots; fails with `UnknownAccount`, `RootTaken`.
    async fn set_account_roots(&self, command: SetAccountRoots) -> Result<Account>;
    /// An account; fails with `UnknownAccount`.
    async fn account(&self, id: AccountId) -> Result<Account>;
    /// An account by its name; fails with `UnknownAccount`.
    async fn account_by_name(&self, name: &str) -> Result<Account>;
    /// The roots of all accounts but the one of this name, which need not exist.
    async fn roots_of_others(&self, name: &str) -> Result<Vec<AccountRoot>>;
    /// Makes an account; fails with `AccountNameTaken`, `RootTaken`.
    async fn create_account(&self, command: CreateAccount) -> Result<Account>;
    /// Changes what may change of an account; fails with `UnknownAccount`, `RootTaken`.
    async fn change_account(&self, command: ChangeAccount) -> Result<Account>;
    /// Deletes an account; fails with `UnknownAccount`, `DefaultAccountStays`, `AccountInUse`.
    async fn delete_account(&self, command: DeleteAccount) -> Result<AccountDeleted>;
    /// A page of accounts, newest first.
    async fn list_accounts(&self, query: ListAccounts) -> Result<AccountPage>;

    /// The admin key with this hash; fails with `UnknownAccount` before there is an account `default`.
    async fn ensure_admin_key(&self, command: EnsureAdminKey) -> Result<KeyRecord>;
    /// Makes a key; fails with `NameTaken`, `UnknownAccount`, `UnknownVm`.
    async fn create_key(&self, command: NewKey) -> Result<KeyRecord>;
    /// Revokes a key, or answers the record of one that was revoked before; fails with `UnknownKey`.
    async fn revoke_key(&self, command: RevokeKey) -> Result<KeyRecord>;
    /// Makes a key that takes the name of another one; fails with `UnknownKey`, `KeyNotValid`.
    async fn rotate_key(&self, command: RotateKey) -> Result<KeyRecord>;
    /// Revokes the keys of an account, and tells how many; fails with `UnknownAccount`.
    async fn revoke_all_keys(&self, command: RevokeAllKeys) -> Result<u32>;
    /// Tells of each key that this store revokes from now on, whatever for, once that is durable. What another process
    /// revokes it does not tell.
    fn revocations(&self) -> broadcast::Receiver<KeyId>;
    /// A key of this account; fails with `UnknownKey`.
    async fn key(&self, account: AccountId, id: KeyId) -> Result<KeyRecord>;
    /// A page of an account's keys, revoked ones too, newest first.
    async fn list_keys(&self, query: ListKeys) -> Result<KeyPage>;
    /// The key with this hash, valid or not.
    async fn key_by_hash(&self, hash: KeyHash) -> Result<Option<PresentedKey>>;
    /// Notes when keys were last used; a key that is not known is passed over.
    async fn note_key_uses(&self, uses: Vec<KeyUse>) -> Result<()>;

    /// Begins a session; fails with `UnknownKey`. A key has at most a hundred: the oldest ends for one more.
    async fn create_session(&self, command: NewSession) -> Result<()>;
    /// The session with this hash, valid or not.
    async fn session(&self, hash: SessionHash) -> Result<Option<PresentedSession>>;
    /// Ends a session; tells whether there was one.
    async fn end_session(&self, hash: SessionHash) -> Result<bool>;

    /// Records VMs that were booted together; fails with `UnknownAccount`, and for a ticket with `UnknownTicket`, `NameTaken`,
    /// and with `Ticket` where its attempt has ended meanwhile.
    async fn record_boots(&self, command: RecordBoots) -> Result<()>;
    /// What a boot was answered that had its effect before; fails with `IdempotencyMismatch`.
    async fn booted_before(
        &self,
        account: AccountId,
        once: Once,
        at: Timestamp,
    ) -> Result<Option<BootAnswer>>;
    /// Changes what may change of a VM that lives, and answers it; fails with `UnknownVm`.
    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord>;
    /// Records a VM's end. A second end changes nothing; fails with `UnknownVm`.
    async fn record_end(&self, command: RecordEnd) -> Result<Ended>;
    /// Records the end of the command that a VM was booted with, and what it means for the ticket that the VM holds. A second end
    /// changes nothing; fails with `UnknownVm`.
    async fn record_command_end(&self, command: RecordCommandEnd) -> Result<()>;
    /// Records the end of those of these VMs that live, and answers them in the order of the command; one that is not known
    /// is passed over.
    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>>;
    /// The VMs of all accounts that live, oldest first.
    async fn alive_vms(&self) -> Result<Vec<VmRecord>>;
    /// The VMs of all accounts that live though their attempt at a ticket has ended, and that shall not be kept.
    async fn vms_without_attempt(&self) -> Result<Vec<VmWithoutAttempt>>;
    /// A page of an account's VMs. Of those that ended, the records are kept for as long as events are, 100,000 at most.
    async fn list_vms(&self, query: ListVms) -> Result<VmPage>;

    /// Adds what the command of a VM printed, where the VM has a log, and deletes what is too much.
    async fn append_log(&self, command: AppendLog) -> Result<()>;
    /// How far the outputs of a VM's command were read; the beginning where nothing is known.
    async fn log_position(&self, vm: VmId) -> Result<LogPosition>;
    /// A page of a log; fails with `UnknownTicket`, `UnknownLog`.
    async fn read_log(&self, query: ReadLog) -> Result<LogPage>;

    /// Makes tickets, all of them or none; fails with `UnknownAccount`, `UnknownDependency`, `IdempotencyMismatch`.
    async fn create_tickets(&self, command: CreateTickets) -> Result<Answered<CreatedTickets>>;
    /// Changes a ticket, and answers its record; fails with `UnknownTicket`, `VersionStale`, `UnknownDependency`,
    /// `VmKeyLimited`, and with `Ticket` where the rules say no.
    async fn change_ticket(&self, command: ChangeTicket) -> Result<Ticket>;
    /// Renews a lease; fails with `UnknownTicket`, and with `Ticket` where it is lost.
    async fn beat_ticket(&self, command: BeatTicket) -> Result<Beat>;
    /// Claims what is ready, which may be nothing; fails with `IdempotencyMismatch`. Two calls get different tickets.
    async fn claim_tickets(&self, command: ClaimTickets) -> Result<Answered<ClaimedTickets>>;
    /// Deletes a ticket; fails with `UnknownTicket`, `VersionStale`, `TicketHeld`, `HasDependents`.
    async fn delete_ticket(&self, command: DeleteTicket) -> Result<DeletedTicket>;
    /// Ends an attempt whose time is up, and tells whether it did.
    async fn end_attempt(&self, command: EndAttempt) -> Result<bool>;
    /// Says that a ticket's time has come, and tells whether it had.
    async fn wake_ticket(&self, command: WakeTicket) -> Result<bool>;
    /// A ticket of this account; fails with `UnknownTicket`.
    async fn ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Ticket>;
    /// A ticket that this VM holds or held, or one that such a ticket depends on directly; fails with `UnknownTicket`.
    async fn ticket_of_vm(&self, account: AccountId, vm: VmId, id: TicketId, at: Timestamp)
    -> Result<Ticket>;
    /// A page of an account's tickets.
    async fn list_tickets(&self, query: ListTickets) -> Result<TicketPage>;
    /// What happened to a ticket, also to one that was deleted; fails with `UnknownTicket`.
    async fn ticket_history(&self, query: ReadTicketHistory) -> Result<TicketHistoryPage>;
    /// Why a ticket does not take its next step; fails with `UnknownTicket`.
    async fn why_ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Why>;
    /// Gives every lease of all accounts its full length from this moment on, as after a start: what callers read is what
    /// holds. No renewal, no event, no version.
    async fn restart_leases(&self, at: Timestamp) -> Result<()>;
    /// The attempts of all accounts that go on.
    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>>;
    /// What metrics show of the tickets of one account, or of all. It costs the same however many tickets there are.
    async fn ticket_figures(&self, account: Option<AccountId>) -> Result<Vec<TicketFigures>>;
    /// What metrics show of the VMs that live, by account.
    async fn vm_figures(&self) -> Result<Vec<VmFigures>>;
    /// The tickets of all accounts that wait for their time.
    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>>;
    /// Tells what timers and those who wait for work must know, once it is durable. Whoever falls behind is told that it
    /// did, and reads what is open.
    fn ticket_news(&self) -> broadcast::Receiver<TicketNews>;

    /// The events of all accounts after this sequence, in order, at most `limit`. 0 is before the first.
    async fn events_after(&self, sequence: u64, limit: u32) -> Result<Vec<Event>>;
    /// A page of events.
    async fn read_events(&self, query: ReadEvents) -> Result<EventPage>;
    /// The place behind which the first event of this time or a later one stands, or the newest where there is none. It costs
    /// about the same however many events there are. Where a clock was set back, it may be a later one that has such a time.
    async fn event_place(&self, since: Timestamp) -> Result<EventId>;
    /// Which events there are.
    async fn event_span(&self) -> Result<EventSpan>;
    /// A ticket of this account, and the events that its record contains; fails with `UnknownTicket`.
    async fn ticket_now(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<TicketNow>;
    /// Changes after each commit of this store, durable by then, which may have written events. Of what another process
    /// commits it does not tell.
    fn commits(&self) -> watch::Receiver<u64>;

    /// Keeps a credential of git; fails with `UnknownAccount`.
    async fn set_git_credential(&self, command: SetGitCredential) -> Result<()>;
    /// The credentials of git that an account has, by host.
    async fn git_credentials(&self, account: AccountId) -> Result<Vec<GitCredential>>;
    /// Forgets a credential of git; tells whether there was one.
    async fn remove_git_credential(&self, account: AccountId, host: &str) -> Result<bool>;

    /// Puts somebody on the waitlist. It does the same work for an address that is on it: nobody can tell by the time.
    async fn join_waitlist(&self, command: JoinWaitlist) -> Result<()>;
    /// A page of the waitlist, newest first, each address once.
    async fn list_waitlist(&self, query: ListWaitlist) -> Result<WaitlistPage>;
    /// Removes an address with all that was said with it; fails with `UnknownWaitlistEntry`.
    async fn remove_from_waitlist(&self, command: RemoveFromWaitlist) -> Result<WaitlistEntry>;

    /// Writes entries of the audit; one that is there already is passed over.
    async fn record_audit(&self, entries: Vec<NewAuditEntry>) -> Result<()>;
    /// A page of the audit, newest first.
    async fn list_audit(&self, query: ListAudit) -> Result<AuditPage>;
    /// Deletes a few of the oldest entries and events, where they are too old or too many, and tells how many.
    async fn trim_history(&self, command: TrimHistory) -> Result<Trimmed>;

    /// Makes a webhook; fails with `UnknownAccount`, `TooManyWebhooks`.
    async fn create_webhook(&self, command: CreateWebhook) -> Result<Webhook>;
    /// Changes what may change of a webhook; fails with `UnknownWebhook`.
    async fn change_webhook(&self, command: ChangeWebhook) -> Result<Webhook>;
    /// Gives a webhook another secret; fails with `UnknownWebhook`.
    async fn rotate_webhook(&self, command: RotateWebhook) -> Result<Webhook>;
    /// Deletes a webhook; fails with `UnknownWebhook`.
    async fn delete_webhook(&self, command: DeleteWebhook) -> Result<()>;
    /// A webhook of this account; fails with `UnknownWebhook`.
    async fn webhook(&self, account: AccountId, id: WebhookId) -> Result<Webhook>;
    /// A page of an account's webhooks, newest first.
    async fn list_webhooks(&self, query: ListWebhooks) -> Result<WebhookPage>;
    /// A page of a webhook's deliveries, newest first; fails with `UnknownWebhook`.
    async fn list_deliveries(&self, query: ListDeliveries) -> Result<DeliveryPage>;
    /// Has a delivery tried again from the beginning; fails with `UnknownWebhook`, `UnknownDelivery`, `WebhookDisabled`.
    async fn redeliver(&self, command: Redeliver) -> Result<Delivery>;
    /// Has something sent that is no event; fails with `UnknownWebhook`, `WebhookDisabled`.
    async fn test_webhook(&self, command: TestWebhook) -> Result<Delivery>;
    /// Makes deliveries of events that enabled webhooks have not seen, some at a time.
    async fn enqueue_deliveries(&self, command: EnqueueDeliveries) -> Result<Enqueued>;
    /// The webhooks of all accounts that are enabled.
    async fn due_webhooks(&self) -> Result<Vec<DueWebhook>>;
    /// The deliveries of a webhook whose time has come, in that order.
    async fn due_deliveries(&self, query: ListDue) -> Result<Vec<DueDelivery>>;
    /// Notes an attempt at a delivery, and answers why its webhook was disabled by it, if it was; fails with `UnknownDelivery`.
    async fn record_attempt(&self, command: RecordAttempt) -> Result<Option<DisabledReason>>;

    /// Proves that the store takes commands and answers queries; fails with `Unavailable` where that takes longer than `limit`.
    async fn ping(&self, limit: Duration) -> Result<()>;
}
