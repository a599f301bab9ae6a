//! Boots with an idempotency key, and boots for a ticket: the ticket is claimed first, and released if the boot fails.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use skep_accounts::{KeySecret, scopes_of};
use skep_api::{
    Role, TicketId,
    swarm::BootAnswer,
    tickets::{TICKET_FILE_VARIABLES, TICKET_VARIABLES, Ticket},
};
use skep_store::{Answered, BootAttempt, ChangeTicket, NewKey, Store, TicketCall};
use skep_swarm::{BootSpec, Swarm};
use skep_tickets::{Assignee, Claim, Command, Edits, Release};

use super::boot::TicketWork;
use crate::{auth::Identity, error::Refusal, extract::RequestInfo, random, tickets::InProgressGuard};

/// Lease of the claim during the boot. Once the VM runs, it holds the ticket as long as it lives.
const LEASE: Duration = Duration::from_secs(300);

/// Boots VMs for one request.
#[derive(Clone)]
pub(super) struct Booter {
    store: Arc<dyn Store>,
    caller: Identity,
    request_id: String,
}

impl Booter {
    pub(super) fn new(store: Arc<dyn Store>, caller: &Identity, call: &RequestInfo) -> Self {
        Self { store, caller: caller.clone(), request_id: call.id.as_str().to_owned() }
    }

    /// Boots, at most once if the order has an idempotency key. `in_progress` refuses requests with the same key until the
    /// end.
    ///
    /// # Errors
    /// The ticket cannot be claimed, or the boot failed. After a failed boot the ticket is released without counting
    /// the attempt.
    pub(super) async fn boot(
        self,
        swarm: Swarm,
        order: BootSpec,
        work: Option<TicketWork>,
        in_progress: InProgressGuard,
    ) -> Result<Answered<BootAnswer>, Refusal> {
        // In a separate task: a caller that disconnects must not leave a claim without a VM behind, nor allow a second
        // boot with the same idempotency key.
        let booting = tokio::spawn(async move {
            let _begun = in_progress;
            self.boot_once(&swarm, order, work).await
        });
        booting.await.map_err(|error| Refusal::internal(format!("a boot broke off: {error}")))?
    }

    async fn boot_once(
        &self,
        swarm: &Swarm,
        order: BootSpec,
        work: Option<TicketWork>,
    ) -> Result<Answered<BootAnswer>, Refusal> {
        let account = &self.caller.account;
        if let Some(once) = order.once.clone()
            && let Some(answer) = self.store.stored_boot_answer(account.id, once, Timestamp::now()).await?
        {
            return Ok(Answered { answer, replayed: true });
        }
        let answer = match work {
            None => swarm.boot(&account.id, &account.limits, order).await?,
            Some(TicketWork { ticket, keep_vm }) => {
                let claimed = self.claim(ticket).await?;
                let booted = self.boot_claimed(swarm, order, &claimed, keep_vm).await;
                if booted.is_err() {
                    self.release(&claimed).await;
                }
                booted?
            }
        };
        Ok(Answered { answer, replayed: false })
    }

    async fn boot_claimed(
        &self,
        swarm: &Swarm,
        mut order: BootSpec,
        claimed: &Ticket,
        keep_vm: bool,
    ) -> Result<BootAnswer, Refusal> {
        let Identity { key, account, .. } = &self.caller;
        let secret = KeySecret::from_random(key.environment, random::bytes()?);
        // The swarm sets the last one, the API address.
        let values = [secret.expose().to_owned(), claimed.id.to_string(), claimed.attempt.to_string()];
        order.env.extend(TICKET_VARIABLES.map(str::to_owned).into_iter().zip(values));
        order.env.extend(TICKET_FILE_VARIABLES.map(|(name, path)| (name.to_owned(), path.to_owned())));
        let key = NewKey {
            account: account.id,
            name: format!("{} attempt {}", claimed.id, claimed.attempt),
            environment: key.environment,
            role: Some(Role::Vm),
            scopes: scopes_of(Role::Vm, &account.name),
            // The store sets the VM.
            vm: None,
            hash: secret.hash(),
            prefix: secret.prefix().to_owned(),
            expires_at: None,
            at: Timestamp::now(),
            request_id: Some(self.request_id.clone()),
        };
        order.work = Some(BootAttempt { ticket: claimed.id, attempt: claimed.attempt, key, keep_vm });
        Ok(swarm.boot(&account.id, &account.limits, order).await?)
    }

    async fn claim(&self, ticket: TicketId) -> Result<Ticket, Refusal> {
        let assignee = Assignee::KeyName(self.caller.key.name.clone());
        let claim = Claim { assignee, vm: None, attempt: None, lease: Some(LEASE) };
        Ok(self.store.change_ticket(self.change(ticket, Command::Claim(claim))).await?)
    }

    async fn release(&self, claimed: &Ticket) {
        let attempt = Some(claimed.attempt);
        let release = Release { attempt, assignee: None, retry_after: None, by_status: true };
        let released = self.store.change_ticket(self.change(claimed.id, Command::Release(release))).await;
        if let Err(error) = released {
            // The short lease releases the ticket later. If another attempt has it by now, nothing is lost.
            tracing::warn!(ticket = %claimed.id, %error, "{} could not be released after a failed boot: {error}", claimed.id);
        }
    }

    fn change(&self, id: TicketId, transition: Command) -> ChangeTicket {
        let call = TicketCall {
            account: self.caller.account.id,
            key: Some(self.caller.key.id),
            vm: None,
            at: Timestamp::now(),
            request_id: Some(self.request_id.clone()),
        };
        ChangeTicket { call, id, expected: None, edits: Edits::default(), transition: Some(transition) }
    }
}
