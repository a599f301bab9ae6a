//! A fake store that records only boots, names and ends of VMs, and fails on demand.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{
    AccountId, TemplateId, TicketId, VmId,
    egress::EgressPolicy,
    keys::Limits,
    swarm::{BootAnswer, EndReason, PausedBy, PausedTo},
    templates::Template,
    tickets::{
        Beat, ClaimedTickets, CreatedTickets, DeletedTicket, Ticket, TicketSummary, TicketTotals, Why,
    },
};
use skep_store::{
    AccountDisk, Answered, AppendLog, BeatTicket, ChangeTicket, ChangeVm, ClaimTickets, CreateTickets,
    DeleteTicket, EndAttempt, EndVms, Ended, Error, IdempotentRequest, ListTickets, ListVms, LogPage,
    LogPosition, OpenAttempt, Pause, ReadLog, ReadTicketHistory, RecordBoots, RecordCommandEnd, RecordEnd,
    RecordPause, RecordUnusableSnapshots, Result, TicketHistoryPage, TicketMetrics, TicketPage, TicketSignal,
    TicketStore, UnusableSnapshot, VmAttributes, VmBooted, VmEnd, VmMetrics, VmPage, VmRecord, VmStore,
    VmToEnd, VmWithoutAttempt, WaitingTicket, WakeTicket,
};
use tokio::sync::broadcast;

use crate::{fake_files::FakeFiles, fake_log::FakeLog};

pub(crate) struct FakeStore {
    fails: AtomicBool,
    alive: Mutex<Vec<VmBooted>>,
    paused: Mutex<BTreeMap<VmId, Pause>>,
    snapshots: Mutex<BTreeMap<VmId, TemplateId>>,
    /// The pauses to disk that were recorded, in their order.
    pub(crate) paused_to_disk: Mutex<Vec<VmId>>,
    /// The former process ids on record, which only tests set.
    pub(crate) former_pids: Mutex<Vec<(VmId, u32)>>,
    ends: Mutex<Vec<(VmId, EndReason)>>,
    messages: Mutex<Vec<(VmId, String)>>,
    /// The snapshots that were recorded as unusable, since a test looked.
    pub(crate) unusable_snapshots: Mutex<Vec<UnusableSnapshot>>,
    /// The idempotency keys of the boots whose answers were deleted.
    pub(crate) forgotten_answers: Mutex<Vec<String>>,
    pub(crate) templates: Mutex<Vec<Template>>,
    /// The disk of each account.
    pub(crate) disk: Mutex<AccountDisk>,
    pub(crate) files: Mutex<FakeFiles>,
    pub(crate) log: FakeLog,
}

impl Default for FakeStore {
    fn default() -> Self {
        Self {
            fails: AtomicBool::default(),
            alive: Mutex::default(),
            paused: Mutex::default(),
            snapshots: Mutex::default(),
            paused_to_disk: Mutex::default(),
            former_pids: Mutex::default(),
            ends: Mutex::default(),
            messages: Mutex::default(),
            unusable_snapshots: Mutex::default(),
            forgotten_answers: Mutex::default(),
            templates: Mutex::default(),
            disk: Mutex::new(AccountDisk { limits: Limits::NONE, templates_bytes: 0 }),
            files: Mutex::default(),
            log: FakeLog::default(),
        }
    }
}

impl FakeStore {
    pub(crate) fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    pub(crate) fn alive(&self) -> Vec<VmId> {
        self.alive.lock().unwrap().iter().map(|vm| vm.id).collect()
    }

    pub(crate) fn attributes(&self, vm: VmId) -> VmAttributes {
        let alive = self.alive.lock().unwrap();
        alive.iter().find(|found| found.id == vm).unwrap().attributes.clone()
    }

    /// Changes the record behind the swarm's back, as a restore of a backup does.
    pub(crate) fn set_egress(&self, vm: VmId, egress: EgressPolicy) {
        let mut alive = self.alive.lock().unwrap();
        alive.iter_mut().find(|found| found.id == vm).unwrap().attributes.egress = egress;
    }

    /// Makes a VM work on a ticket, as if it had been booted for it.
    pub(crate) fn set_ticket(&self, vm: VmId) {
        let mut alive = self.alive.lock().unwrap();
        alive.iter_mut().find(|found| found.id == vm).unwrap().ticket = Some(TicketId::generate());
    }

    pub(crate) fn is_paused(&self, vm: VmId) -> bool {
        self.paused.lock().unwrap().contains_key(&vm)
    }

    /// Changes the record behind the swarm's back.
    pub(crate) fn set_paused(&self, vm: VmId, pause: Option<Pause>) {
        let mut paused = self.paused.lock().unwrap();
        match pause {
            Some(pause) => paused.insert(vm, pause),
            None => paused.remove(&vm),
        };
    }

    /// As [`Self::set_paused`], with a VM that is on disk in a snapshot.
    pub(crate) fn set_on_disk(&self, vm: VmId) {
        self.set_paused(vm, Some(Pause { to: PausedTo::Disk, by: PausedBy::Request }));
        self.snapshots.lock().unwrap().insert(vm, TemplateId::generate());
    }

    fn record(&self, vm: VmBooted) -> VmRecord {
        let pause = self.paused.lock().unwrap().get(&vm.id).copied();
        let snapshot = self.snapshots.lock().unwrap().get(&vm.id).copied();
        VmRecord { command_runs: vm.ticket.is_some(), vm, pause, snapshot, resumed_at: None, end: None }
    }

    pub(crate) fn forget(&self, vm: VmId) {
        self.alive.lock().unwrap().retain(|alive| alive.id != vm);
    }

    pub(crate) fn ends(&self) -> Vec<(VmId, EndReason)> {
        self.ends.lock().unwrap().clone()
    }

    /// The messages of ends that have one.
    pub(crate) fn messages(&self) -> Vec<(VmId, String)> {
        self.messages.lock().unwrap().clone()
    }

    fn result_or_failure<T>(&self, value: T) -> Result<T> {
        let failed = Error::UnknownAccount { account: "a test".to_owned() };
        if self.fails.load(Ordering::Relaxed) { Err(failed) } else { Ok(value) }
    }
}

#[async_trait]
impl VmStore for FakeStore {
    async fn record_boots(&self, command: RecordBoots) -> Result<()> {
        self.result_or_failure(())?;
        self.alive.lock().unwrap().extend(command.vms);
        Ok(())
    }

    async fn record_end(&self, command: RecordEnd) -> Result<Ended> {
        self.result_or_failure(())?;
        self.ends.lock().unwrap().push((command.vm, command.reason));
        let mut alive = self.alive.lock().unwrap();
        let vm = alive.iter().position(|vm| vm.id == command.vm).map(|at| alive.swap_remove(at));
        let end = Some(VmEnd { at: command.at, reason: command.reason });
        Ok(Ended {
            record: VmRecord { end, ..self.record(vm.ok_or(Error::UnknownVm { vm: command.vm })?) },
            first: true,
        })
    }

    async fn change_vm(&self, command: ChangeVm) -> Result<VmRecord> {
        self.result_or_failure(())?;
        let mut alive = self.alive.lock().unwrap();
        let vm =
            alive.iter_mut().find(|vm| vm.id == command.vm).ok_or(Error::UnknownVm { vm: command.vm })?;
        vm.attributes = vm.attributes.clone().with(command.change);
        Ok(self.record(vm.clone()))
    }

    async fn record_pause(&self, command: RecordPause) -> Result<VmRecord> {
        self.result_or_failure(())?;
        let alive = self.alive.lock().unwrap();
        let vm = alive.iter().find(|vm| vm.id == command.vm).ok_or(Error::UnknownVm { vm: command.vm })?;
        let pause = command.change.pause();
        self.set_paused(vm.id, pause);
        if pause.is_some_and(|pause| pause.to == PausedTo::Disk) {
            self.paused_to_disk.lock().unwrap().push(vm.id);
        }
        Ok(self.record(vm.clone()))
    }

    async fn end_vms(&self, command: EndVms) -> Result<Vec<VmRecord>> {
        self.result_or_failure(())?;
        for VmToEnd { vm, message } in command.vms {
            self.ends.lock().unwrap().push((vm, command.reason));
            self.messages.lock().unwrap().extend(message.map(|message| (vm, message)));
            self.forget(vm);
        }
        Ok(Vec::new())
    }

    async fn live_vms(&self) -> Result<Vec<VmRecord>> {
        let alive = self.alive.lock().unwrap().clone().into_iter();
        self.result_or_failure(alive.map(|vm| self.record(vm)).collect())
    }

    async fn former_pids(&self) -> Result<Vec<(VmId, u32)>> {
        Ok(self.former_pids.lock().unwrap().clone())
    }

    async fn had_key(&self, _: VmId) -> Result<bool> {
        Ok(false)
    }

    async fn record_unusable_snapshots(&self, command: RecordUnusableSnapshots) -> Result<()> {
        self.result_or_failure(())?;
        self.unusable_snapshots.lock().unwrap().extend(command.snapshots);
        Ok(())
    }

    async fn record_command_end(&self, _: RecordCommandEnd) -> Result<()> {
        unreachable!()
    }

    async fn append_log(&self, command: AppendLog) -> Result<()> {
        self.log.append(&command).await;
        Ok(())
    }

    async fn log_position(&self, _: VmId) -> Result<LogPosition> {
        Ok(LogPosition::default())
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

    async fn forget_boot_answer(&self, _: AccountId, once: IdempotentRequest) -> Result<()> {
        self.forgotten_answers.lock().unwrap().push(once.key);
        Ok(())
    }

    async fn list_vms(&self, _: ListVms) -> Result<VmPage> {
        unreachable!()
    }

    async fn vm_metrics(&self) -> Result<Vec<VmMetrics>> {
        unreachable!()
    }
}

#[async_trait]
impl TicketStore for FakeStore {
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

    async fn list_ticket_summaries(&self, _: ListTickets) -> Result<TicketPage<TicketSummary>> {
        unreachable!()
    }

    async fn ticket_totals(&self, _: AccountId) -> Result<TicketTotals> {
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
}
