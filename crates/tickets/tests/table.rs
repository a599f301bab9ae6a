//! The transition table: the effect of each request in each state, or how it is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use skep_api::{
    ErrorCode, TicketId, VmId,
    tickets::{Blocker, ChangeTicket, Object, TicketStatus},
};
use skep_tickets::{
    Beat, Blockers, Command, Decision, EndCause, Finish, Holder, Lapsed, Lease, State, StepKind, Ticket,
    Wait, decide, transition,
};

fn now() -> Timestamp {
    "2026-05-01T12:00:00Z".parse().unwrap()
}

fn result(word: &str) -> Object {
    Object::from_iter([("word".to_owned(), word.into())])
}

/// The initial states of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Was {
    /// Never claimed, ready.
    Fresh,
    /// Ready, after its third attempt was released.
    GivenBack,
    /// Pending, after the lease of its third attempt, held by agent-9, expired.
    Lapsed,
    /// As `Lapsed`, with a dependency that is not completed.
    LapsedBlocked,
    /// Pending, with a failed dependency.
    Blocked,
    /// Pending, with `not_before` in the future.
    Waiting,
    /// Pending, with `not_before` passed, but before its timer has fired.
    JustDue,
    /// Held by agent-9, attempt 3.
    Held,
    /// Completed by agent-9 with a result.
    Completed,
    /// Failed by agent-9 with a result.
    Failed,
    /// Failed without a result.
    FailedBare,
}

use Was::{Blocked, Completed, Failed, FailedBare, Fresh, GivenBack, Held, JustDue, LapsedBlocked, Waiting};

fn ticket(from: Was) -> Ticket {
    let assignee = "agent-9".to_owned();
    let blocker = Blocker { id: TicketId::generate(), status: TicketStatus::Failed };
    let blockers = Blockers { total: 1, named: vec![blocker] };
    let lapsed = Some(Lapsed { assignee: assignee.clone(), vm: None });
    let finish = |given: Option<Object>| Finish {
        assignee: Some(assignee.clone()),
        vm: None,
        result: given,
        at: now(),
    };
    let fresh = Ticket {
        id: TicketId::generate(),
        attempt: 3,
        counted: 2,
        max_attempts: 5,
        wait: Wait::None,
        blockers: Blockers::default(),
        started_at: Some(now()),
        state: State::Pending { lapsed: None },
    };
    match from {
        Fresh => Ticket { attempt: 0, counted: 0, started_at: None, ..fresh },
        GivenBack => fresh,
        Was::Lapsed => Ticket { state: State::Pending { lapsed }, ..fresh },
        LapsedBlocked => Ticket { state: State::Pending { lapsed }, blockers, ..fresh },
        Blocked => Ticket { attempt: 0, blockers, ..fresh },
        Waiting => Ticket { attempt: 0, wait: Wait::Until(now() + 1.hour()), ..fresh },
        JustDue => Ticket { attempt: 0, wait: Wait::Until(now() - 1.millisecond()), ..fresh },
        Held => {
            let lease = Lease::from(now(), Duration::from_secs(60));
            Ticket { state: State::InProgress(Holder { assignee, vm: None, lease }), ..fresh }
        }
        Completed => Ticket { state: State::Completed(finish(Some(result("old")))), ..fresh },
        Failed => Ticket { state: State::Failed(finish(Some(result("old")))), ..fresh },
        FailedBare => Ticket { state: State::Failed(finish(None)), ..fresh },
    }
}

/// The expected effect of a request.
#[derive(Debug, Clone, Copy)]
enum To {
    /// No change, and no error.
    Nothing,
    /// Only the lease is renewed.
    Renewed,
    /// These steps, which lead to this attempt and this assignee.
    Steps(&'static [StepKind], u32, Option<&'static str>),
    /// An error with this code, whose message contains this text.
    No(ErrorCode, &'static str),
}

use StepKind::{Claimed, Ready, Released, Reopened};
use To::{No, Nothing, Renewed, Steps};

const DONE: StepKind = StepKind::Completed;
const GIVEN_UP: StepKind = StepKind::Failed;
const ME: Option<&str> = Some("agent-1");
const HOLDER: Option<&str> = Some("agent-9");
const KEY: Option<&str> = Some("the key");

/// Each permitted transition, and the ways in which it can be refused.
const TABLE: &[(Was, &str, To)] = &[
    // pending → in_progress: ready and unclaimed.
    (Fresh, r#"{"status": "in_progress", "assignee": "agent-1"}"#, Steps(&[Claimed], 1, ME)),
    (Fresh, r#"{"assignee": "agent-1", "lease_ms": 5000}"#, Steps(&[Claimed], 1, ME)),
    (Fresh, r#"{"status": "in_progress"}"#, Steps(&[Claimed], 1, KEY)),
    (Fresh, r#"{"assignee": "agent-1", "attempt": 0}"#, Steps(&[Claimed], 1, ME)),
    (GivenBack, r#"{"assignee": "agent-1"}"#, Steps(&[Claimed], 4, ME)),
    (Was::Lapsed, r#"{"assignee": "agent-1"}"#, Steps(&[Claimed], 4, ME)),
    (JustDue, r#"{"assignee": "agent-1"}"#, Steps(&[Ready, Claimed], 1, ME)),
    (Blocked, r#"{"assignee": "agent-1"}"#, No(ErrorCode::Blocked, "tkt_")),
    (LapsedBlocked, r#"{"assignee": "agent-9"}"#, No(ErrorCode::Blocked, "tkt_")),
    (Waiting, r#"{"assignee": "agent-1"}"#, No(ErrorCode::NotYet, "13:00:00.000Z")),
    (Was::Lapsed, r#"{"assignee": "agent-9", "attempt": 3}"#, No(ErrorCode::LeaseLost, "attempt 3")),
    (
        Was::Lapsed,
        r#"{"assignee": "agent-9", "attempt": 2}"#,
        No(ErrorCode::Superseded, "attempt 3 (agent-9)"),
    ),
    (Fresh, r#"{"assignee": "agent-9", "attempt": 2}"#, No(ErrorCode::Superseded, "never begun")),
    // in_progress → in_progress: only for the same assignee, named explicitly.
    (Held, r#"{"assignee": "agent-9"}"#, Renewed),
    (Held, r#"{"status": "in_progress", "assignee": "agent-9", "attempt": 3}"#, Renewed),
    (
        Held,
        r#"{"assignee": "agent-1"}"#,
        No(ErrorCode::ClaimLost, "agent-9 (attempt 3, until 2026-05-01T12:01"),
    ),
    (Held, r#"{"status": "in_progress"}"#, No(ErrorCode::ClaimLost, "agent-9")),
    (
        Held,
        r#"{"assignee": "agent-9", "attempt": 2}"#,
        No(ErrorCode::Superseded, "attempt 2 was superseded by attempt 3"),
    ),
    // in_progress → completed, failed.
    (Held, r#"{"status": "completed"}"#, Steps(&[DONE], 3, HOLDER)),
    (Held, r#"{"status": "failed", "attempt": 3, "assignee": "agent-9"}"#, Steps(&[GIVEN_UP], 3, HOLDER)),
    (
        Held,
        r#"{"status": "completed", "attempt": 2}"#,
        No(ErrorCode::Superseded, "attempt 2 was superseded by attempt 3 (agent-9)"),
    ),
    (Held, r#"{"status": "failed", "attempt": 4}"#, No(ErrorCode::Superseded, "never begun")),
    (Held, r#"{"status": "completed", "assignee": "agent-1"}"#, No(ErrorCode::ClaimLost, "agent-9")),
    // pending → completed: the caller claims and completes in one change.
    (Fresh, r#"{"status": "completed", "assignee": "agent-1"}"#, Steps(&[Claimed, DONE], 1, ME)),
    (GivenBack, r#"{"status": "completed"}"#, Steps(&[Claimed, DONE], 4, KEY)),
    (GivenBack, r#"{"status": "completed", "attempt": 3}"#, Steps(&[Claimed, DONE], 4, KEY)),
    (Was::Lapsed, r#"{"status": "completed", "assignee": "agent-1"}"#, Steps(&[Claimed, DONE], 4, ME)),
    (JustDue, r#"{"status": "completed"}"#, Steps(&[Ready, Claimed, DONE], 1, KEY)),
    (Blocked, r#"{"status": "completed"}"#, No(ErrorCode::Blocked, "(failed)")),
    (LapsedBlocked, r#"{"status": "completed"}"#, No(ErrorCode::Blocked, "tkt_")),
    (Waiting, r#"{"status": "completed"}"#, No(ErrorCode::NotYet, "not_before")),
    (GivenBack, r#"{"status": "completed", "attempt": 2}"#, No(ErrorCode::Superseded, "attempt 2")),
    // pending → failed: always permitted; the attempt does not change.
    (Fresh, r#"{"status": "failed"}"#, Steps(&[GIVEN_UP], 0, None)),
    (Blocked, r#"{"status": "failed", "assignee": "agent-1"}"#, Steps(&[GIVEN_UP], 0, None)),
    (Waiting, r#"{"status": "failed"}"#, Steps(&[GIVEN_UP], 0, None)),
    (Was::Lapsed, r#"{"status": "failed"}"#, Steps(&[GIVEN_UP], 3, None)),
    // pending → completed, failed with the last attempt: late, even if the ticket is not ready.
    (Was::Lapsed, r#"{"status": "completed", "attempt": 3}"#, Steps(&[DONE], 3, HOLDER)),
    (
        LapsedBlocked,
        r#"{"status": "completed", "attempt": 3, "assignee": "agent-9"}"#,
        Steps(&[DONE], 3, HOLDER),
    ),
    (LapsedBlocked, r#"{"status": "failed", "attempt": 3}"#, Steps(&[GIVEN_UP], 3, HOLDER)),
    (
        Was::Lapsed,
        r#"{"status": "completed", "attempt": 3, "assignee": "agent-1"}"#,
        No(ErrorCode::Superseded, "agent-9"),
    ),
    (Was::Lapsed, r#"{"status": "completed", "attempt": 1}"#, No(ErrorCode::Superseded, "attempt 1")),
    // in_progress → pending: a release.
    (Held, r#"{"status": "pending"}"#, Steps(&[Released, Ready], 3, None)),
    (Held, r#"{"assignee": null}"#, Steps(&[Released, Ready], 3, None)),
    (Held, r#"{"status": "pending", "retry_after_ms": 1}"#, Steps(&[Released], 3, None)),
    (
        Held,
        r#"{"status": "pending", "attempt": 3, "assignee": "agent-9"}"#,
        Steps(&[Released, Ready], 3, None),
    ),
    (Held, r#"{"status": "pending", "attempt": 2}"#, No(ErrorCode::Superseded, "attempt 2")),
    (Held, r#"{"status": "pending", "assignee": "agent-1"}"#, No(ErrorCode::ClaimLost, "agent-9")),
    // failed → pending: a retry.
    (Failed, r#"{"status": "pending"}"#, Steps(&[Reopened, Ready], 3, None)),
    (Failed, r#"{"status": "pending", "retry_after_ms": 5}"#, Steps(&[Reopened], 3, None)),
    // terminal → the same status, with the same result or none.
    (Completed, r#"{"status": "completed"}"#, Nothing),
    (Completed, r#"{"status": "completed", "result": {"word": "old"}}"#, Nothing),
    (Completed, r#"{"result": {"word": "old"}}"#, Nothing),
    (Failed, r#"{"status": "failed", "attempt": 3}"#, Nothing),
    (FailedBare, r#"{"status": "failed", "result": null}"#, Nothing),
    (
        Completed,
        r#"{"status": "completed", "result": {"word": "new"}}"#,
        No(ErrorCode::TicketState, "result"),
    ),
    (Completed, r#"{"status": "completed", "result": null}"#, No(ErrorCode::TicketState, "result")),
    (FailedBare, r#"{"status": "failed", "result": {}}"#, No(ErrorCode::TicketState, "result")),
    (Failed, r#"{"status": "failed", "attempt": 2}"#, No(ErrorCode::Superseded, "attempt 2")),
    // pending → pending.
    (Fresh, r#"{"status": "pending"}"#, Nothing),
    (Blocked, r#"{"assignee": null}"#, Nothing),
    (Was::Lapsed, r#"{"status": "pending", "attempt": 3}"#, Nothing),
    // failed → in_progress, completed; completed → anything else; a result alone.
    (Failed, r#"{"status": "in_progress"}"#, No(ErrorCode::TicketState, "retry it")),
    (Failed, r#"{"assignee": "agent-9"}"#, No(ErrorCode::TicketState, "failed")),
    (Failed, r#"{"assignee": null}"#, No(ErrorCode::TicketState, "retry it")),
    (Failed, r#"{"status": "completed"}"#, No(ErrorCode::TicketState, "retry it")),
    (Completed, r#"{"status": "in_progress"}"#, No(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"status": "failed"}"#, No(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"status": "pending"}"#, No(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"assignee": null}"#, No(ErrorCode::TicketState, "completed")),
    (Held, r#"{"result": {"word": "new"}}"#, No(ErrorCode::TicketState, "result")),
    (Fresh, r#"{"result": {}}"#, No(ErrorCode::TicketState, "result")),
];

#[test]
fn every_row_of_the_table_and_every_otherwise_is_so() {
    for (from, request, expected) in TABLE {
        let before = ticket(*from);
        let request: ChangeTicket = serde_json::from_str(request).unwrap();
        let command = transition(&request, "the key").unwrap().unwrap();
        let decided = decide(&before, &command, now());
        let at = format!("{from:?} {}: {decided:?}", serde_json::to_string(&request).unwrap());
        match (*expected, decided) {
            (Nothing, Ok(Decision::Nothing)) | (Renewed, Ok(Decision::Renewed(_))) => {}
            (No(code, word), Err(refusal)) => {
                assert_eq!(refusal.code(), code, "{at}");
                assert!(refusal.to_string().contains(word), "{at}: {refusal}");
            }
            (Steps(kinds, attempt, assignee), Ok(Decision::Changed(steps))) => {
                assert_eq!(steps.iter().map(|step| step.kind).collect::<Vec<_>>(), kinds, "{at}");
                let after = &steps.last().unwrap().ticket;
                assert_eq!((after.attempt, after.assignee()), (attempt, assignee), "{at}");
                assert_eq!(after.is_ready(now()), kinds.last() == Some(&Ready), "{at}");
                if let Some(finish) = after.finish() {
                    assert_eq!(finish.result.as_ref(), request.result.value(), "{at}");
                }
            }
            _ => panic!("{at} is not {expected:?}"),
        }
    }
}

#[test]
fn beats_keep_only_what_is_held() {
    let beat = |attempt: Option<u32>, assignee: Option<&str>| {
        Command::Beat(Beat { attempt, assignee: assignee.map(str::to_owned), lease: None })
    };
    for (from, attempt, assignee, expected) in [
        (Held, None, None, Ok(())),
        (Held, Some(3), HOLDER, Ok(())),
        (Held, Some(2), None, Err(ErrorCode::Superseded)),
        (Held, Some(4), None, Err(ErrorCode::Superseded)),
        (Held, Some(3), ME, Err(ErrorCode::ClaimLost)),
        (Was::Lapsed, Some(3), None, Err(ErrorCode::LeaseLost)),
        (GivenBack, None, None, Err(ErrorCode::LeaseLost)),
        (Completed, Some(3), None, Err(ErrorCode::TicketState)),
        (Failed, Some(1), None, Err(ErrorCode::Superseded)),
    ] {
        let decided = decide(&ticket(from), &beat(attempt, assignee), now());
        let found = decided.map_err(|refusal| refusal.code());
        let lease = Lease::from(now(), Duration::from_secs(60));
        assert_eq!(found, expected.map(|()| Decision::Renewed(lease)), "{from:?} {attempt:?}");
    }
}

/// The effect of the end of an attempt on a ticket with `counted` counted attempts before.
fn ended(counted: u32, cause: EndCause) -> (Vec<StepKind>, Ticket) {
    let before = Ticket { counted, ..ticket(Held) };
    match decide(&before, &Command::End { attempt: 3, cause, earlier: Vec::new() }, now()) {
        Ok(Decision::Changed(steps)) => {
            (steps.iter().map(|step| step.kind).collect(), steps.last().unwrap().ticket.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn attempts_that_end_by_themselves_rest_longer_each_time_and_then_fail() {
    for cause in [EndCause::LeaseExpired, EndCause::MaxRuntime, EndCause::VmEnded, EndCause::CommandEnded] {
        let (steps, after) = ended(0, cause);
        assert_eq!(steps, [StepKind::Expired(cause), Ready], "the first retry is at once");
        assert_eq!((after.counted, after.wait), (1, Wait::None));
        for (counted, seconds) in [(1, 10), (2, 20), (3, 40)] {
            let (steps, after) = ended(counted, cause);
            assert_eq!(steps, [StepKind::Expired(cause)]);
            assert_eq!(after.wait, Wait::Until(now() + seconds.seconds()));
        }
        let (steps, after) = ended(4, cause);
        assert_eq!(steps, [StepKind::Expired(cause), GIVEN_UP]);
        let result = after.finish().unwrap().result.clone().unwrap();
        assert_eq!(
            (&result["error"], &result["attempts"][0]["attempt"]),
            (&"max_attempts".into(), &3.into())
        );
    }
    // The deletion of the VM by request does not count.
    let (steps, after) = ended(4, EndCause::VmDeleted);
    assert_eq!((steps, after.counted), (vec![Released, Ready], 4));
}

#[test]
fn what_ends_another_attempt_ends_nothing() {
    for (from, attempt) in
        [(Held, 2), (Held, 4), (GivenBack, 3), (Was::Lapsed, 3), (Completed, 3), (Failed, 3)]
    {
        let command = Command::End { attempt, cause: EndCause::LeaseExpired, earlier: Vec::new() };
        assert_eq!(decide(&ticket(from), &command, now()), Ok(Decision::Nothing), "{from:?}");
    }
}

#[test]
fn a_time_that_comes_is_said_once_and_only_where_nothing_else_is_missing() {
    let wake = |ticket: &Ticket, not_before| decide(ticket, &Command::Wake { not_before }, now()).unwrap();
    let until = now() + 1.hour();
    let waiting = ticket(Waiting);
    let Decision::Changed(steps) = wake(&waiting, until) else { panic!("it is ready") };
    assert_eq!(steps.iter().map(|step| step.kind).collect::<Vec<_>>(), [Ready]);
    assert_eq!(wake(&steps[0].ticket, until), Decision::Nothing, "once");
    assert_eq!(wake(&waiting, until + 1.second()), Decision::Nothing, "another time");
    let blocked = Ticket { wait: Wait::Until(until), ..ticket(Blocked) };
    assert_eq!(wake(&blocked, until), Decision::Nothing);
}

#[test]
fn a_retry_begins_to_count_anew_and_keeps_the_number_of_its_attempts() {
    let request: ChangeTicket = serde_json::from_str(r#"{"status": "pending"}"#).unwrap();
    let command = transition(&request, "the key").unwrap().unwrap();
    let Ok(Decision::Changed(steps)) = decide(&ticket(Failed), &command, now()) else {
        panic!("it is retried")
    };
    assert_eq!((steps[0].ticket.counted, steps[0].ticket.attempt), (0, 3));
}

#[test]
fn a_vm_goes_with_its_attempt() {
    let vm = Some(VmId::generate());
    let lapsed = Some(Lapsed { assignee: "agent-9".to_owned(), vm });
    let before = Ticket { state: State::Pending { lapsed }, ..ticket(Was::Lapsed) };
    let request: ChangeTicket = serde_json::from_str(r#"{"status": "completed", "attempt": 3}"#).unwrap();
    let command = transition(&request, "the key").unwrap().unwrap();
    let Ok(Decision::Changed(steps)) = decide(&before, &command, now()) else {
        panic!("it is finished late")
    };
    assert_eq!(steps[0].ticket.vm(), vm);
}
