//! Implementation of [`Store`] in one SQLite file, with one writer thread and a pool of read connections.

mod accounts;
mod after_restore;
mod audit;
mod backups;
mod columns;
mod deliveries;
mod events;
mod fault;
mod file;
mod git;
mod health;
mod history;
mod inspect;
mod key_cache;
mod keys;
mod migrations;
mod read_roots;
mod readers;
mod run_logs;
mod sessions;
#[cfg(test)]
mod tests;
mod tickets;
mod vms;
mod waitlist;
mod webhooks;
mod writer;

pub use self::{
    backups::{Backup, Restored, backup, restore},
    inspect::{Inspection, inspect},
    read_roots::account_roots,
};

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use skep_accounts::{KeyHash, SessionHash};
use skep_api::{
    AccountId, KeyId, TicketId, VmId, WaitlistId, WebhookId,
    events::EventId,
    swarm::BootAnswer,
    tickets::{Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Ticket, Why},
    waitlist::WaitlistEntry,
    webhooks::{Delivery, DisabledReason},
};
use tokio::sync::{broadcast, watch};

use self::{
    fault::Fault,
    file::DatabaseFile,
    key_cache::{CommitCounter, KeyCache, Lookup},
    readers::Readers,
    tickets::{TicketIdGenerator, WithSignals},
    writer::Writer,
};
use crate::{
    Account, AccountDeleted, AccountPage, AccountRoot, Answered, AppendLog, AuditPage, BeatTicket, Cause,
    ChangeAccount, ChangeTicket, ChangeVm, ChangeWebhook, ClaimTickets, CommitObserver, CreateAccount,
    CreateTickets, CreateWebhook, DeleteAccount, DeleteTicket, DeleteWebhook, DeliveryPage, DueDelivery,
    DueWebhook, EndAttempt, EndVms, Ended, EnqueueDeliveries, Enqueued, EnsureAdminKey, EnsureDefaultAccount,
    Error, Event, EventPage, EventSpan, GitCredential, IdempotentRequest, JoinWaitlist, KeyPage, KeyRecord,
    KeyUse, ListAccounts, ListAudit, ListDeliveries, ListDue, ListKeys, ListTickets, ListVms, ListWaitlist,
    ListWebhooks, LogPage, LogPosition, NewAuditEntry, NewKey, NewSession, OpenAttempt, PresentedKey,
    PresentedSession, ReadEvents, ReadLog, ReadTicketHistory, RecordAttempt, RecordBoots, RecordCommandEnd,
    RecordEnd, Redeliver, RemoveFromWaitlist, Result, RevokeAllKeys, RevokeKey, RotateKey, RotateWebhook,
    SetAccountRoots, SetGitCredential, Store, TestWebhook, TicketHistoryPage, TicketMetrics, TicketPage,
    TicketSignal, TicketWithSpan, TrimHistory, Trimmed, VmMetrics, VmPage, VmRecord, VmWithoutAttempt,
    WaitingTicket, WaitlistPage, WakeTicket, Webhook, WebhookPage,
};

/// Capacity of the channel of revocations. A receiver that lags must look its keys up again.
const REVOCATION_CAPACITY: usize = 1024;
/// Capacity of the channel of ticket signals. A receiver that lags must read the open attempts and waiting tickets
/// again.
const SIGNAL_CAPACITY: usize = 16_384;

/// Location and options of the database.
#[derive(Debug, Clone)]
pub struct SqliteSettings {
    /// The file, created with mode 0600 if it does not exist. Its directory must exist and be writable.
    pub path: PathBuf,
    /// How long to wait for a lock of another process on the file.
    pub busy_timeout: Duration,
    pub observer: Arc<dyn CommitObserver>,
}

impl SqliteSettings {
    /// Settings for the database at this path, with a busy timeout of 5 seconds and no observer.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), busy_timeout: Duration::from_secs(5), observer: Arc::new(()) }
    }
}

/// A store in one SQLite file. Dropping it executes the commands that are still queued.
pub struct SqliteStore {
    // Declared, and so dropped, before the readers: the last connection to close should have nothing to write.
    writer: Writer,
    readers: Readers,
    key_cache: KeyCache,
    path: PathBuf,
    revocations: broadcast::Sender<KeyId>,
    ticket_ids: Arc<TicketIdGenerator>,
    ticket_signals: broadcast::Sender<TicketSignal>,
    commits: watch::Receiver<u64>,
}

impl SqliteStore {
    /// Opens the database, creates it if it does not exist, and migrates it to the newest version.
    ///
    /// # Errors
    /// [`Error::NewerVersion`] if a newer skep wrote it, [`Error::Unavailable`] if the file cannot be used.
    pub async fn open(settings: SqliteSettings) -> Result<Self> {
        let path = settings.path.clone();
        let opened = tokio::task::spawn_blocking(move || {
            open(&settings).map_err(|fault| fault.into_error(&settings.path))
        });
        opened.await.map_err(|error| Error::Internal { path, source: Cause::from_error(&error) })?
    }

    fn start(
        connection: Connection,
        file: Arc<DatabaseFile>,
        observer: Arc<dyn CommitObserver>,
    ) -> std::result::Result<Self, Fault> {
        let (signal, commit_count) = watch::channel(0);
        let commits = CommitCounter::new(observer, signal);
        let (known_keys, path) = (KeyCache::new(&file, commits.clone())?, file.path().to_owned());
        let writer = Writer::start(connection, Arc::clone(&file), Arc::new(commits))?;
        let revocations = broadcast::channel(REVOCATION_CAPACITY).0;
        let (ticket_ids, ticket_news) = (Arc::default(), broadcast::channel(SIGNAL_CAPACITY).0);
        Ok(Self {
            writer,
            readers: Readers::new(file),
            key_cache: known_keys,
            path,
            revocations,
            ticket_ids,
            ticket_signals: ticket_news,
            commits: commit_count,
        })
    }

    /// Executes a command that revokes keys, and broadcasts their ids once it is durable.
    async fn run_revocation<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<(T, Vec<KeyId>), Fault> + Send + 'static,
    ) -> Result<T> {
        let listeners = self.revocations.clone();
        let notify = move |(_, revoked): &(T, Vec<KeyId>)| send_all(&listeners, revoked);
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }

    /// Executes a command on tickets, and broadcasts the resulting signals once it is durable.
    async fn run_ticket_command<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<WithSignals<T>, Fault> + Send + 'static,
    ) -> Result<T> {
        let listeners = self.ticket_signals.clone();
        let notify = move |(_, signals): &WithSignals<T>| send_all(&listeners, signals);
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }

    /// Executes a command that ends VMs, and broadcasts the revoked keys and the ticket signals once it is durable.
    async fn run_vm_end<T: Send + 'static>(
        &self,
        command: impl Fn(&Connection) -> std::result::Result<(T, vms::Endings), Fault> + Send + 'static,
    ) -> Result<T> {
        let (revocations, listeners) = (self.revocations.clone(), self.ticket_signals.clone());
        let notify = move |(_, endings): &(T, vms::Endings)| {
            send_all(&revocations, &endings.keys);
            send_all(&listeners, &endings.tickets);
        };
        Ok(self.writer.run_and_notify(command, notify).await?.0)
    }
}

/// Sends all items to the subscribers, if there are any.
fn send_all<T: Clone>(listeners: &broadcast::Sender<T>, items: &[T]) {
    for one in items {
        let _ = listeners.send(one.clone());
    }
}

fn open(settings: &SqliteSettings) -> std::result::Result<SqliteStore, Fault> {
    let file = Arc::new(DatabaseFile::locate_or_create(&settings.path, settings.busy_timeout)?);
    let mut connection = file.writer()?;
    migrations::migrate(&mut connection)?;
    after_restore::release_tickets(&mut connection)?;
    SqliteStore::start(connection, file, Arc::clone(&settings.observer))
}

#[async_trait]
impl Store for SqliteStore {
    async fn ensure_default_account(&self, command: EnsureDefaultAccount) -> Result<Account> {
        let id = AccountId::generate();
        self.writer.run(move |c| accounts::ensure_default(c, id, &command)).await
    }

    async fn set_account_roots(&self, command: SetAccountRoots) -> Result<Account> {
        self.writer.run(move |c| accounts::set_roots(c, &command)).await
    }

    async fn account(&self, id: AccountId) -> Result<Account> {
        self.readers.run(move |c| accounts::by_id(c, id)).await
    }

    async fn account_by_name(&self, name: &str) -> Result<Account> {
        let name = name.to_owned();
        self.readers.run(move |c| accounts::by_name(c, &name)).await
    }

    async fn roots_of_other_accounts(&self, name: &str) -> Result<Vec<AccountRoot>> {
        let name = name.to_owned();
        self.readers.run(move |c| accounts::roots_of_others(c, &name)).await
    }

    async fn create_account(&self, command: CreateAccount) -> Result<Account> {
        let id = AccountId::generate();
        self.writer.run(move |c| accounts::create(c, id, &command)).await
    }

    async fn change_account(&self, command: ChangeAccount) -> Result<Account> {
        self.writer.run(move |c| accounts::alter(c, &command)).await
    }

    async fn delete_account(&self, command: DeleteAccount) -> Result<AccountDeleted> {
        let deleted = self.run_revocation(move |c| {
            let (account, revoked) = accounts::delete(c, &command)?;
            Ok((AccountDeleted { account, keys_revoked: number(&revoked) }, revoked))
        });
        deleted.await
    }

    async fn list_accounts(&self, query: ListAccounts) -> Result<AccountPage> {
        self.readers.run(move |c| accounts::list(c, query)).await
    }

    async fn ensure_admin_key(&self, command: EnsureAdminKey) -> Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| keys::ensure_admin(c, id, &command)).await
    }

    async fn create_key(&self, command: NewKey) -> Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| keys::create(c, id, &command)).await
    }

    async fn revoke_key(&self, command: RevokeKey) -> Result<KeyRecord> {
        self.run_revocation(move |c| Ok((keys::revoke(c, &command)?, vec![command.id]))).await
    }

    async fn rotate_key(&self, command: RotateKey) -> Result<KeyRecord> {
        let id = KeyId::generate();
        self.writer.run(move |c| keys::rotate(c, id, &command)).await
    }

    async fn revoke_all_keys(&self, command: RevokeAllKeys) -> Result<u32> {
        let revoked = self.run_revocation(move |c| {
            let revoked = keys::revoke_all(c, &command)?;
            Ok((number(&revoked), revoked))
        });
        revoked.await
    }

    fn revocations(&self) -> broadcast::Receiver<KeyId> {
        self.revocations.subscribe()
    }

    async fn key(&self, account: AccountId, id: KeyId) -> Result<KeyRecord> {
        self.readers.run(move |c| keys::by_id(c, account, id)).await
    }

    async fn list_keys(&self, query: ListKeys) -> Result<KeyPage> {
        self.readers.run(move |c| keys::list(c, query)).await
    }

    async fn key_by_hash(&self, hash: KeyHash) -> Result<Option<PresentedKey>> {
        let version = match self.key_cache.look_up(&hash) {
            Lookup::Hit(key) => return Ok(Some(*key)),
            Lookup::Miss(version) => Some(version),
            Lookup::Unavailable => None,
        };
        let found = self.readers.run(move |c| keys::presented(c, hash)).await?;
        if let (Some(key), Some(version)) = (&found, version) {
            self.key_cache.insert(hash, key.clone(), version);
        }
        Ok(found)
    }

    async fn record_key_uses(&self, uses: Vec<KeyUse>) -> Result<()> {
        self.writer.run(move |c| keys::record_uses(c, &uses)).await
    }

    async fn create_session(&self, command: NewSession) -> Result<()> {
        self.writer.run(move |c| sessions::create(c, &command)).await
    }

    async fn session(&self, hash: SessionHash) -> Result<Option<PresentedSession>> {
        self.readers.run(move |c| sessions::presented(c, hash)).await
    }

    async fn end_session(&self, hash: SessionHash) -> Result<bool> {
        self.writer.run(move |c| sessions::end(c, hash)).await
    }

    async fn record_boots(&self, command: RecordBoots) -> Result<()> {
        let key = KeyId::generate();
        self.run_ticket_command(move |c| Ok(((), vms::record_boots(c, key, &command)?))).await
    }

    async fn stored_boot_answer(
        &self,
        account: AccountId,
        once: IdempotentRequest,
        at: Timestamp,
    ) -> Result<Option<BootAnswer>> {
        self.readers.run(move |c| tickets::find_answer(c, account, &once, at)).await
    }

    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord> {
        self.writer.run(move |c| vms::change_vm(c, &command)).await
    }

    async fn record_end(&self, command: RecordEnd) -> Result<Ended> {
        self.run_vm_end(move |c| vms::record_end(c, &command)).await
    }

    async fn record_command_end(&self, command: RecordCommandEnd) -> Result<()> {
        self.run_ticket_command(move |c| vms::record_command_end(c, &command)).await
    }

    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>> {
        self.run_vm_end(move |c| vms::end_vms(c, &command)).await
    }

    async fn running_vms(&self) -> Result<Vec<VmRecord>> {
        self.readers.run(vms::running).await
    }

    async fn vms_without_attempt(&self) -> Result<Vec<VmWithoutAttempt>> {
        self.readers.run(vms::without_attempt).await
    }

    async fn list_vms(&self, query: ListVms) -> Result<VmPage> {
        self.readers.run(move |c| vms::list(c, &query)).await
    }

    async fn append_log(&self, command: AppendLog) -> Result<()> {
        self.writer.run(move |c| run_logs::append(c, &command)).await
    }

    async fn log_position(&self, vm: VmId) -> Result<LogPosition> {
        self.readers.run(move |c| run_logs::position(c, vm)).await
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        self.readers.run(move |c| run_logs::read(c, &query)).await
    }

    async fn create_tickets(&self, command: CreateTickets) -> Result<Answered<CreatedTickets>> {
        let ids = Arc::clone(&self.ticket_ids);
        self.run_ticket_command(move |c| tickets::create(c, &ids, &command)).await
    }

    async fn change_ticket(&self, command: ChangeTicket) -> Result<Ticket> {
        self.run_ticket_command(move |c| tickets::change(c, &command)).await
    }

    async fn beat_ticket(&self, command: BeatTicket) -> Result<Beat> {
        self.run_ticket_command(move |c| tickets::beat(c, &command)).await
    }

    async fn claim_tickets(&self, command: ClaimTickets) -> Result<Answered<ClaimedTickets>> {
        self.run_ticket_command(move |c| tickets::claim(c, &command)).await
    }

    async fn delete_ticket(&self, command: DeleteTicket) -> Result<DeletedTicket> {
        self.run_ticket_command(move |c| tickets::delete(c, &command)).await
    }

    async fn end_attempt(&self, command: EndAttempt) -> Result<bool> {
        self.run_ticket_command(move |c| tickets::end_attempt(c, &command)).await
    }

    async fn wake_ticket(&self, command: WakeTicket) -> Result<bool> {
        self.run_ticket_command(move |c| tickets::wake(c, &command)).await
    }

    async fn ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Ticket> {
        self.readers.run(move |c| tickets::read(c, account, id, at)).await
    }

    async fn ticket_of_vm(
        &self,
        account: AccountId,
        vm: VmId,
        id: TicketId,
        at: Timestamp,
    ) -> Result<Ticket> {
        self.readers.run(move |c| tickets::read_of_vm(c, account, vm, id, at)).await
    }

    async fn list_tickets(&self, query: ListTickets) -> Result<TicketPage> {
        self.readers.run(move |c| tickets::list(c, &query)).await
    }

    async fn ticket_history(&self, query: ReadTicketHistory) -> Result<TicketHistoryPage> {
        self.readers.run(move |c| tickets::history(c, &query)).await
    }

    async fn why_ticket(&self, account: AccountId, id: TicketId, at: Timestamp) -> Result<Why> {
        self.readers.run(move |c| tickets::why(c, account, id, at)).await
    }

    async fn restart_leases(&self, at: Timestamp) -> Result<()> {
        self.writer.run(move |c| tickets::restart_leases(c, at)).await
    }

    async fn open_attempts(&self) -> Result<Vec<OpenAttempt>> {
        self.readers.run(tickets::open_attempts).await
    }

    async fn ticket_metrics(&self, account: Option<AccountId>) -> Result<Vec<TicketMetrics>> {
        self.readers.run(move |c| tickets::metrics(c, account)).await
    }

    async fn vm_metrics(&self) -> Result<Vec<VmMetrics>> {
        self.readers.run(vms::metrics).await
    }

    async fn waiting_tickets(&self) -> Result<Vec<WaitingTicket>> {
        self.readers.run(tickets::waiting).await
    }

    fn ticket_signals(&self) -> broadcast::Receiver<TicketSignal> {
        self.ticket_signals.subscribe()
    }

    async fn events_after(&self, sequence: u64, limit: u32) -> Result<Vec<Event>> {
        self.readers.run(move |c| events::after(c, sequence, limit)).await
    }

    async fn set_git_credential(&self, command: SetGitCredential) -> Result<()> {
        self.writer.run(move |c| git::set(c, &command)).await
    }

    async fn git_credentials(&self, account: AccountId) -> Result<Vec<GitCredential>> {
        self.readers.run(move |c| git::list(c, account)).await
    }

    async fn remove_git_credential(&self, account: AccountId, host: &str) -> Result<bool> {
        let host = host.to_owned();
        self.writer.run(move |c| git::remove(c, account, &host)).await
    }

    async fn read_events(&self, query: ReadEvents) -> Result<EventPage> {
        self.readers.run(move |c| events::page(c, &query)).await
    }

    async fn event_position(&self, since: Timestamp) -> Result<EventId> {
        self.readers.run(move |c| events::position_before(c, since)).await
    }

    async fn event_span(&self) -> Result<EventSpan> {
        self.readers.run(events::span).await
    }

    async fn ticket_with_span(
        &self,
        account: AccountId,
        id: TicketId,
        at: Timestamp,
    ) -> Result<TicketWithSpan> {
        let query = move |c: &Connection| {
            Ok(TicketWithSpan { ticket: tickets::read(c, account, id, at)?, span: events::span(c)? })
        };
        self.readers.run(query).await
    }

    fn commits(&self) -> watch::Receiver<u64> {
        self.commits.clone()
    }

    async fn join_waitlist(&self, command: JoinWaitlist) -> Result<()> {
        let id = WaitlistId::generate();
        self.writer.run(move |c| waitlist::join(c, id, &command)).await
    }

    async fn list_waitlist(&self, query: ListWaitlist) -> Result<WaitlistPage> {
        self.readers.run(move |c| waitlist::list(c, query)).await
    }

    async fn remove_from_waitlist(&self, command: RemoveFromWaitlist) -> Result<WaitlistEntry> {
        self.writer.run(move |c| waitlist::remove(c, &command)).await
    }

    async fn record_audit(&self, entries: Vec<NewAuditEntry>) -> Result<()> {
        self.writer.run(move |c| audit::record(c, &entries)).await
    }

    async fn list_audit(&self, query: ListAudit) -> Result<AuditPage> {
        self.readers.run(move |c| audit::list(c, &query)).await
    }

    async fn trim_history(&self, command: TrimHistory) -> Result<Trimmed> {
        self.writer.run(move |c| history::trim(c, &command)).await
    }

    async fn create_webhook(&self, command: CreateWebhook) -> Result<Webhook> {
        self.writer.run(move |c| webhooks::create(c, &command)).await
    }

    async fn change_webhook(&self, command: ChangeWebhook) -> Result<Webhook> {
        self.writer.run(move |c| webhooks::alter(c, &command)).await
    }

    async fn rotate_webhook(&self, command: RotateWebhook) -> Result<Webhook> {
        self.writer.run(move |c| webhooks::rotate(c, &command)).await
    }

    async fn delete_webhook(&self, command: DeleteWebhook) -> Result<()> {
        self.writer.run(move |c| webhooks::delete(c, command)).await
    }

    async fn webhook(&self, account: AccountId, id: WebhookId) -> Result<Webhook> {
        self.readers.run(move |c| webhooks::by_id(c, account, id)).await
    }

    async fn list_webhooks(&self, query: ListWebhooks) -> Result<WebhookPage> {
        self.readers.run(move |c| webhooks::list(c, query)).await
    }

    async fn list_deliveries(&self, query: ListDeliveries) -> Result<DeliveryPage> {
        self.readers.run(move |c| deliveries::list(c, query)).await
    }

    async fn redeliver(&self, command: Redeliver) -> Result<Delivery> {
        self.writer.run(move |c| deliveries::redeliver(c, &command)).await
    }

    async fn test_webhook(&self, command: TestWebhook) -> Result<Delivery> {
        self.writer.run(move |c| deliveries::test(c, &command)).await
    }

    async fn enqueue_deliveries(&self, command: EnqueueDeliveries) -> Result<Enqueued> {
        self.writer.run(move |c| deliveries::enqueue(c, &command)).await
    }

    async fn due_webhooks(&self) -> Result<Vec<DueWebhook>> {
        self.readers.run(webhooks::due).await
    }

    async fn due_deliveries(&self, query: ListDue) -> Result<Vec<DueDelivery>> {
        self.readers.run(move |c| deliveries::due(c, query)).await
    }

    async fn record_attempt(&self, command: RecordAttempt) -> Result<Option<DisabledReason>> {
        self.writer.run(move |c| deliveries::record(c, &command)).await
    }

    async fn ping(&self, limit: Duration) -> Result<()> {
        let both = async {
            self.writer.run(health::check_write).await?;
            self.readers.run(health::check_read).await
        };
        tokio::time::timeout(limit, both).await.unwrap_or_else(|_| {
            let source = Cause::new(format!("no answer within {} ms", limit.as_millis()));
            Err(Error::Unavailable { path: self.path.clone(), source })
        })
    }
}

fn number(keys: &[KeyId]) -> u32 {
    u32::try_from(keys.len()).unwrap_or(u32::MAX)
}
