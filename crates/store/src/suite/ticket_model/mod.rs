//! Property tests with random actions of several agents on a few tickets. In sequence, each answer and the final state
//! must equal those of a simple model. Concurrently, where the order is unknown, the invariants must hold and no answer
//! may contradict them.

mod actions;
mod checks;
mod concurrent;
mod model;
mod model_ticket;
mod patch;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use jiff::ToSpan;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use skep_api::{AccountId, ErrorCode, TicketId, tickets::Priority};
use skep_tickets::Dependency;
use tokio::{runtime::Handle, task::spawn_blocking};

use self::{
    actions::{Action, ModelCommand, action, to_command},
    model::Model,
};
use super::{account_named, moment};
use crate::{CreateTickets, Store, WakeTicket};

/// Number of sequences, unless `PROPTEST_CASES` is set. Each has about a hundred actions.
const CASES: u32 = 24;
/// Maximum length of a sequence.
const MAX_ACTIONS: usize = 200;
/// Time limit for shrinking a failed sequence, in milliseconds.
const SHRINK_MS: u32 = 30_000;

pub async fn whatever_agents_do_the_store_agrees_with_the_model(store: Arc<dyn Store>) {
    let played = try_sequences(store, CASES, |store, account, acts| async move {
        let mut play = Comparison { store, account, model: Model::new(moment(10)), ids: Vec::new() };
        play.act(&create_initial()).await;
        for act in &acts {
            play.act(act).await;
        }
        play.check().await;
    });
    played.await;
}

pub async fn whatever_agents_do_at_once_the_invariants_hold(store: Arc<dyn Store>) {
    try_concurrent_sequences(store, CASES).await;
}

/// Runs this number of random sequences, each distributed among concurrent agents.
pub(crate) async fn try_concurrent_sequences(store: Arc<dyn Store>, cases: u32) {
    try_sequences(store, cases, concurrent::run_concurrently).await;
}

/// Runs random sequences of actions, each with an account of its own, and reports a shrunk one on failure.
async fn try_sequences<F>(
    store: Arc<dyn Store>,
    cases: u32,
    play: impl Fn(Arc<dyn Store>, AccountId, Vec<Action>) -> F + Send + 'static,
) where
    F: Future<Output = ()>,
{
    let (runtime, number) = (Handle::current(), AtomicU32::new(0));
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { cases };
    let config = Config { cases, failure_persistence: None, max_shrink_time: SHRINK_MS, ..Config::default() };
    // The test runner is synchronous and blocks.
    let trying = spawn_blocking(move || {
        let found = TestRunner::new(config).run(&prop::collection::vec(action(), 1..MAX_ACTIONS), |acts| {
            let name = format!("model-{}", number.fetch_add(1, Ordering::Relaxed));
            runtime.block_on(async {
                let account = account_named(&*store, &name).await.id;
                play(Arc::clone(&store), account, acts).await;
            });
            Ok(())
        });
        found.unwrap_or_else(|failure| panic!("{failure}"));
    });
    trying.await.unwrap();
}

/// Creates the initial tickets, which depend on each other.
fn create_initial() -> Action {
    let tickets = vec![(vec![], true), (vec![], true), (vec![], false)];
    Action::Make { tickets, wait: None, priority: Priority::Medium, attempts: 2, labels: vec![0] }
}

/// Executes each action on the store and the model, and compares the answers.
struct Comparison {
    store: Arc<dyn Store>,
    account: AccountId,
    model: Model,
    /// All tickets ever created, oldest first.
    ids: Vec<TicketId>,
}

impl Comparison {
    async fn act(&mut self, act: &Action) {
        let known = |id| self.model.known(id);
        let Some(order) = to_command(act, self.account, self.model.now, &self.ids, known) else { return };
        match order {
            ModelCommand::Create(command) => self.create(command).await,
            ModelCommand::Change(command) => {
                let (id, expected, edits) = (command.id, command.expected.clone(), command.edits.clone());
                let outcome = self.model.change(id, expected.as_deref(), &edits, command.transition.as_ref());
                let answer = self.store.change_ticket(command).await.map_err(|error| error.code());
                assert_eq!(answer, outcome.map(|()| self.model.record(id)), "{act:?} of {id}");
            }
            ModelCommand::Claim(command) => {
                let claimed = self.model.claim_next(&command.claim);
                let answer = self.store.claim_tickets(command).await.unwrap().answer;
                let records: Vec<_> = claimed.iter().map(|id| self.model.record(*id)).collect();
                assert_eq!(answer.tickets, records, "{act:?}");
            }
            ModelCommand::Beat(command) => {
                let expected = self.model.beat(command.id, &command.beat);
                let id = command.id;
                let answer = self.store.beat_ticket(command).await.map_err(|error| error.code());
                let answer = answer.map(|beat| (beat.attempt, Some(beat.lease_expires_at)));
                let record = |()| self.model.record(id);
                let expected = expected.map(record).map(|record| (record.attempt, record.lease_expires_at));
                assert_eq!(answer, expected, "{act:?} of {id}");
            }
            ModelCommand::End(command) => {
                let beats = match command.timer {
                    crate::AttemptTimer::Lease { beats } => Some(beats),
                    crate::AttemptTimer::Runtime => None,
                };
                let ended = self.model.end(command.ticket, command.attempt, beats);
                assert_eq!(self.store.end_attempt(command).await.unwrap(), ended, "{act:?}");
            }
            ModelCommand::Delete(command) => {
                let expected = self.model.delete(&command);
                let answer = self.store.delete_ticket(command).await.map_err(|error| error.code());
                assert_eq!(answer.map(|_| ()), expected, "{act:?}");
            }
            ModelCommand::Pass { seconds, timers } => self.advance_clock(seconds, timers).await,
        }
    }

    async fn create(&mut self, command: CreateTickets) {
        let tickets: Vec<_> = command.tickets.iter().map(|(_, new)| new.clone()).collect();
        let known = |need: &Dependency| match need {
            Dependency::Ticket(id) => self.model.tickets.contains_key(id),
            Dependency::Sibling(_) => true,
        };
        let good = tickets.iter().flat_map(|new| &new.dependencies).all(known);
        let answer = match self.store.create_tickets(command).await {
            Ok(answered) => answered.answer,
            Err(error) => {
                assert_eq!((error.code(), good), (ErrorCode::UnknownDependency, false), "{error}");
                return;
            }
        };
        assert!(good, "{answer:?} depends on what is gone");
        let ids: Vec<TicketId> = answer.tickets.iter().map(|ticket| ticket.id).collect();
        let needs = |new: &skep_tickets::NewTicket| {
            let id = |need: &Dependency| match need {
                Dependency::Ticket(id) => *id,
                Dependency::Sibling(place) => ids[*place],
            };
            new.dependencies.iter().map(id).collect::<Vec<_>>()
        };
        self.model.make(ids.iter().zip(tickets).map(|(id, new)| (*id, new.clone(), needs(&new))).collect());
        self.ids.extend(&ids);
        let records: Vec<_> = ids.iter().map(|id| self.model.record(*id)).collect();
        assert_eq!(answer.tickets, records);
    }

    async fn advance_clock(&mut self, seconds: u16, timers: bool) {
        self.model.now += i64::from(seconds).seconds();
        let at = self.model.now;
        for (ticket, not_before) in self.model.waiting() {
            // A wake for a different `not_before` has no effect.
            let other = WakeTicket { ticket, not_before: not_before + Duration::from_secs(1), at };
            assert!(!self.store.wake_ticket(other).await.unwrap());
            if timers && not_before <= at {
                self.model.wake(ticket);
                assert!(self.store.wake_ticket(WakeTicket { ticket, not_before, at }).await.unwrap());
            }
        }
    }
}
