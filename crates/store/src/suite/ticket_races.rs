//! Tests of concurrent claims and changes of tickets.

use std::{collections::BTreeSet, sync::Arc};

use skep_api::{AccountId, ErrorCode, tickets::Ticket};
use skep_tickets::{Assignee, Claim, Command, Dependency, Edits};
use tokio::{sync::Barrier, task::JoinSet};

use super::{
    counts, default_account, moment,
    tickets::{call, change, claim, claims, completion, create_ticket, creation, new_ticket},
};
use crate::{AttemptTimer, ChangeTicket, EndAttempt, Error, ReadTicketHistory, Store};

const AGENTS: usize = 32;
const CLAIMANTS: usize = 64;
const ROUNDS: usize = 40;
const EXPIRIES: usize = 200;

/// All agents claim one ticket at the same time. Returns the winners and losers.
async fn race(
    store: &Arc<dyn Store>,
    account: AccountId,
    claim: impl Fn(usize) -> Command,
) -> (Vec<Ticket>, Vec<Error>) {
    let id = create_ticket(&**store, account, vec![]).await;
    let barrier = Arc::new(Barrier::new(CLAIMANTS));
    let mut agents = JoinSet::new();
    for agent in 0..CLAIMANTS {
        let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
        let command = change(account, id, claim(agent));
        agents.spawn(async move {
            barrier.wait().await;
            store.change_ticket(command).await
        });
    }
    let (won, lost): (Vec<_>, Vec<_>) = agents.join_all().await.into_iter().partition(Result::is_ok);
    assert!(won.iter().flatten().all(|ticket| (ticket.id, ticket.attempt, ticket.version) == (id, 1, 2)));
    (won.into_iter().flatten().collect(), lost.into_iter().filter_map(Result::err).collect())
}

pub async fn one_of_many_claims_wins(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let nameless =
        || Claim { assignee: Assignee::KeyName("key".to_owned()), vm: None, attempt: None, lease: None };
    for _ in 0..ROUNDS {
        let own = race(&store, account, |agent| claim(&format!("agent-{agent}"), None)).await;
        let none = race(&store, account, |_| Command::Claim(nameless())).await;
        for (won, lost) in [own, none] {
            assert_eq!((won.len(), lost.len()), (1, CLAIMANTS - 1));
            let holder = won[0].assignee.as_deref().unwrap();
            for refusal in lost {
                assert_eq!(refusal.code(), ErrorCode::ClaimLost);
                let message = refusal.to_string();
                assert!(message.contains(&format!("held by {holder} (attempt 1")), "{message}");
            }
        }
        let (won, lost) = race(&store, account, |_| claim("same", None)).await;
        assert_eq!((won.len(), lost.len()), (CLAIMANTS, 0), "one attempt, and its renewals");
    }
    assert_eq!(counts(&*store).await["ticket.claimed"], 3 * ROUNDS);
}

pub async fn claims_at_once_get_different_tickets(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let many = (0..300).map(|_| new_ticket("a", vec![])).collect();
    store.create_tickets(creation(account, many)).await.unwrap();
    let mut agents = JoinSet::new();
    for _ in 0..AGENTS {
        let store = Arc::clone(&store);
        // Concurrent calls of the same assignee get different tickets too.
        agents.spawn(
            async move { store.claim_tickets(claims(account, "same", 7)).await.unwrap().answer.tickets },
        );
    }
    let claimed: Vec<_> = agents.join_all().await.into_iter().flatten().map(|ticket| ticket.id).collect();
    assert_eq!(claimed.len(), AGENTS * 7);
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>().len(), AGENTS * 7);
    assert_eq!(counts(&*store).await["ticket.claimed"], AGENTS * 7);
}

pub async fn a_completion_and_the_end_of_its_lease_never_both_end_an_attempt(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut expiries = 0;
    for _ in 0..EXPIRIES {
        let id = create_ticket(&*store, account, vec![]).await;
        store.change_ticket(change(account, id, claim("a", None))).await.unwrap();
        let up =
            EndAttempt { ticket: id, attempt: 1, timer: AttemptTimer::Lease { beats: 0 }, at: moment(60) };
        let (done, expired) = tokio::join!(
            store.change_ticket(change(account, id, completion(Some(1)))),
            store.end_attempt(up)
        );
        // The ticket was not claimed meanwhile, so the completion counts even if it is late.
        done.unwrap();
        expiries += usize::from(expired.unwrap());
        let history =
            store.ticket_history(ReadTicketHistory { account, id, limit: 100, after: None }).await.unwrap();
        assert_eq!(history.attempts.len(), 1);
    }
    let counts = counts(&*store).await;
    assert_eq!(counts["ticket.completed"], EXPIRIES);
    assert_eq!(counts.get("ticket.lease_expired").copied().unwrap_or(0), expiries);
}

pub async fn changes_at_once_make_no_cycle(store: Arc<dyn Store>) {
    const RING: usize = 5;
    let account = default_account(&*store).await.id;
    for _ in 0..20 {
        let mut ring = Vec::new();
        for _ in 0..RING {
            ring.push(create_ticket(&*store, account, vec![]).await);
        }
        let mut changes = JoinSet::new();
        for place in 0..RING {
            let edits = Edits { dependencies: Some(vec![ring[(place + 1) % RING]]), ..Edits::default() };
            let (id, store) = (ring[place], Arc::clone(&store));
            let command =
                ChangeTicket { call: call(account, 20), id, expected: None, edits, transition: None };
            changes.spawn(async move { store.change_ticket(command).await });
        }
        let refused: Vec<_> = changes.join_all().await.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.iter().map(Error::code).collect::<Vec<_>>(), [ErrorCode::Cycle]);
        assert!(ring.iter().all(|id| refused[0].to_string().contains(&id.to_string())), "{}", refused[0]);
    }
}

pub async fn the_last_prerequisites_at_once_make_it_ready_once(store: Arc<dyn Store>) {
    let account = default_account(&*store).await.id;
    let mut needs = Vec::new();
    for _ in 0..AGENTS {
        needs.push(create_ticket(&*store, account, vec![]).await);
    }
    let last = create_ticket(&*store, account, needs.iter().copied().map(Dependency::Ticket).collect()).await;
    let mut agents = JoinSet::new();
    for id in needs {
        let store = Arc::clone(&store);
        agents
            .spawn(async move { store.change_ticket(change(account, id, completion(None))).await.unwrap() });
    }
    agents.join_all().await;
    assert!(store.ticket(account, last, moment(100)).await.unwrap().ready);
    let history = ReadTicketHistory { account, id: last, limit: 100, after: None };
    let events = store.ticket_history(history).await.unwrap().events;
    assert_eq!(
        events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(),
        ["ticket.created", "ticket.ready"]
    );
}
