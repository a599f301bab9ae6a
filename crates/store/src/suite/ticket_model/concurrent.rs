//! Concurrent execution of random actions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
};

use skep_api::{
    AccountId, TicketId,
    tickets::{Ticket, TicketStatus},
};
use skep_tickets::Command;
use tokio::{sync::Barrier, task::JoinSet};

use super::{
    actions::{Action, Known, ModelCommand, to_command},
    checks, create_initial,
};
use crate::{EventKind, Store, TicketSort, WakeTicket, suite::moment};

const AGENTS: usize = 8;

/// State shared by the concurrent agents.
#[derive(Default)]
struct Fixture {
    /// Current step of [`moment`], in milliseconds.
    clock: AtomicI64,
    ids: Mutex<Vec<TicketId>>,
    /// The assignee that the store reported for each attempt.
    holders: Mutex<BTreeMap<(TicketId, u32), String>>,
    /// Attempts returned by `claim_tickets`.
    claimed: Mutex<BTreeSet<(TicketId, u32)>>,
}

/// Distributes the actions among agents that run concurrently.
pub(super) async fn run_concurrently(store: Arc<dyn Store>, account: AccountId, acts: Vec<Action>) {
    let fixture = Arc::new(Fixture::default());
    fixture.clock.store(10, Ordering::Relaxed);
    fixture.act(&*store, account, &create_initial()).await;
    let barrier = Arc::new(Barrier::new(AGENTS));
    let mut agents = JoinSet::new();
    for agent in 0..AGENTS {
        let own: Vec<Action> = acts.iter().skip(agent).step_by(AGENTS).cloned().collect();
        let (fixture, store, barrier) = (Arc::clone(&fixture), Arc::clone(&store), Arc::clone(&barrier));
        agents.spawn(async move {
            barrier.wait().await;
            for act in &own {
                fixture.act(&*store, account, act).await;
            }
        });
    }
    agents.join_all().await;
    let at = moment(fixture.clock.load(Ordering::Relaxed));
    checks::invariants(&*store, account, at).await;
    // Each attempt that started was returned to exactly one agent.
    let claims = checks::events(&*store, account).await.into_iter();
    let claims = claims.filter(|event| event.kind == EventKind::TicketClaimed);
    let number = |attempt: &serde_json::Value| u32::try_from(attempt.as_u64().unwrap()).unwrap();
    let begun: Vec<_> = claims.map(|event| (event.ticket.unwrap(), number(&event.body["attempt"]))).collect();
    let answered: Vec<_> = fixture.holders.lock().unwrap().keys().copied().collect();
    assert_eq!(begun.iter().copied().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(), answered);
    assert_eq!(begun.len(), answered.len(), "an attempt began twice");
}

impl Fixture {
    /// Executes one action. Refusals are accepted; successful answers are checked.
    async fn act(&self, store: &dyn Store, account: AccountId, act: &Action) {
        let at = moment(self.clock.load(Ordering::Relaxed));
        let known: BTreeMap<TicketId, Known> = checks::list(store, account, at, None, TicketSort::Created)
            .await
            .into_iter()
            // The number of renewals is not in the record, so lease timers assume none.
            .map(|one| (one.id, Known { attempt: one.attempt, beats: 0, version: one.version }))
            .collect();
        let known = |id: TicketId| known.get(&id).copied().unwrap_or_default();
        let ids = self.ids.lock().unwrap().clone();
        let Some(order) = to_command(act, account, at, &ids, known) else { return };
        match order {
            ModelCommand::Create(command) => {
                if let Ok(made) = store.create_tickets(command).await {
                    self.ids.lock().unwrap().extend(made.answer.tickets.iter().map(|ticket| ticket.id));
                }
            }
            ModelCommand::Change(command) => {
                let takes = matches!(command.transition, Some(Command::Claim(_) | Command::Finish(_)));
                if let Ok(ticket) = store.change_ticket(command).await
                    && takes
                {
                    self.record_holder(&ticket);
                }
            }
            ModelCommand::Claim(command) => {
                for ticket in store.claim_tickets(command).await.unwrap().answer.tickets {
                    assert_eq!(ticket.status, TicketStatus::InProgress);
                    assert!(self.claimed.lock().unwrap().insert((ticket.id, ticket.attempt)), "{ticket:?}");
                    self.record_holder(&ticket);
                }
            }
            ModelCommand::Beat(command) => _ = store.beat_ticket(command).await,
            ModelCommand::End(command) => _ = store.end_attempt(command).await.unwrap(),
            ModelCommand::Delete(command) => _ = store.delete_ticket(command).await,
            ModelCommand::Pass { seconds, .. } => {
                let passed = i64::from(seconds) * 1_000;
                let at = moment(self.clock.fetch_add(passed, Ordering::Relaxed) + passed);
                for waiting in store.waiting_tickets().await.unwrap() {
                    if waiting.not_before <= at && ids.contains(&waiting.ticket) {
                        let (ticket, not_before) = (waiting.ticket, waiting.not_before);
                        store.wake_ticket(WakeTicket { ticket, not_before, at }).await.unwrap();
                    }
                }
            }
        }
    }

    /// Records that the store reported a holder of an attempt, which must always be the same.
    fn record_holder(&self, ticket: &Ticket) {
        let Some(assignee) = ticket.assignee.clone() else { return };
        let mut holders = self.holders.lock().unwrap();
        let known = holders.entry((ticket.id, ticket.attempt)).or_insert_with(|| assignee.clone());
        assert_eq!(*known, assignee, "two agents were given attempt {} of {}", ticket.attempt, ticket.id);
    }
}
