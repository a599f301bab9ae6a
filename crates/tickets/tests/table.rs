//! The transition table: the effect of each request in each state, or how it is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use skep_api::{
    ErrorCode, TicketId, VmId,
    tickets::{Blocker, ChangeTicket, Heartbeat, Object, TicketStatus},
};
use skep_tickets::{
    Blockers, Command, Decision, EndCause, Finish, Holder, LapsedHolder, Lease, State, StepKind, Ticket,
    Wait, decide, parse_transition,
};

fn now() -> Timestamp {
    "2026-05-01T12:00:00Z".parse().unwrap()
}

fn result(word: &str) -> Object {
    Object::from_iter([("word".to_owned(), word.into())])
}

/// The initial states of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum InitialState {
    /// Never claimed, ready.
    NeverClaimed,
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
    FailedWithoutResult,
}

use InitialState::{
    Blocked, Completed, Failed, FailedWithoutResult, GivenBack, Held, JustDue, LapsedBlocked, NeverClaimed,
    Waiting,
};

fn ticket(from: InitialState) -> Ticket {
    let assignee = "agent-9".to_owned();
    let blocker = Blocker { id: TicketId::generate(), status: TicketStatus::Failed };
    let blockers = Blockers { total: 1, named: vec![blocker] };
    let lapsed = Some(LapsedHolder { assignee: assignee.clone(), vm: None });
    let finish = |given: Option<Object>| Finish {
        assignee: Some(assignee.clone()),
        vm: None,
        result: given,
        at: now(),
    };
    let new_ticket = Ticket {
        id: TicketId::generate(),
        attempt: 3,
        counted_attempts: 2,
        max_attempts: 5,
        wait: Wait::None,
        blockers: Blockers::default(),
        started_at: Some(now()),
        state: State::Pending { lapsed: None },
    };
    match from {
        NeverClaimed => Ticket { attempt: 0, counted_attempts: 0, started_at: None, ..new_ticket },
        GivenBack => new_ticket,
        InitialState::Lapsed => Ticket { state: State::Pending { lapsed }, ..new_ticket },
        LapsedBlocked => Ticket { state: State::Pending { lapsed }, blockers, ..new_ticket },
        Blocked => Ticket { attempt: 0, blockers, ..new_ticket },
        Waiting => Ticket { attempt: 0, wait: Wait::Until(now() + 1.hour()), ..new_ticket },
        JustDue => Ticket { attempt: 0, wait: Wait::Until(now() - 1.millisecond()), ..new_ticket },
        Held => {
            let lease = Lease::from(now(), Duration::from_secs(60));
            Ticket { state: State::InProgress(Holder { assignee, vm: None, lease }), ..new_ticket }
        }
        Completed => Ticket { state: State::Completed(finish(Some(result("old")))), ..new_ticket },
        Failed => Ticket { state: State::Failed(finish(Some(result("old")))), ..new_ticket },
        FailedWithoutResult => Ticket { state: State::Failed(finish(None)), ..new_ticket },
    }
}

/// The expected effect of a request.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// No change, and no error.
    Nothing,
    /// Only the lease is renewed.
    Renewed,
    /// These steps, which lead to this attempt and this assignee.
    Steps(&'static [StepKind], u32, Option<&'static str>),
    /// An error with this code, whose message contains this text.
    Refused(ErrorCode, &'static str),
}

use Expected::{Nothing, Refused, Renewed, Steps};
use StepKind::{Claimed, Ready, Released, Reopened};

const COMPLETED: StepKind = StepKind::Completed;
const FAILED: StepKind = StepKind::Failed;
const ME: Option<&str> = Some("agent-1");
const HOLDER: Option<&str> = Some("agent-9");
const KEY: Option<&str> = Some("the key");

/// Each permitted transition, and the ways in which it can be refused.
const TABLE: &[(InitialState, &str, Expected)] = &[
    // pending → in_progress: ready and unclaimed.
    (NeverClaimed, r#"{"status": "in_progress", "assignee": "agent-1"}"#, Steps(&[Claimed], 1, ME)),
    (NeverClaimed, r#"{"assignee": "agent-1", "lease_ms": 5000}"#, Steps(&[Claimed], 1, ME)),
    (NeverClaimed, r#"{"status": "in_progress"}"#, Steps(&[Claimed], 1, KEY)),
    (NeverClaimed, r#"{"assignee": "agent-1", "attempt": 0}"#, Steps(&[Claimed], 1, ME)),
    (GivenBack, r#"{"assignee": "agent-1"}"#, Steps(&[Claimed], 4, ME)),
    (InitialState::Lapsed, r#"{"assignee": "agent-1"}"#, Steps(&[Claimed], 4, ME)),
    (JustDue, r#"{"assignee": "agent-1"}"#, Steps(&[Ready, Claimed], 1, ME)),
    (Blocked, r#"{"assignee": "agent-1"}"#, Refused(ErrorCode::Blocked, "tkt_")),
    (LapsedBlocked, r#"{"assignee": "agent-9"}"#, Refused(ErrorCode::Blocked, "tkt_")),
    (Waiting, r#"{"assignee": "agent-1"}"#, Refused(ErrorCode::NotYet, "13:00:00.000Z")),
    (
        InitialState::Lapsed,
        r#"{"assignee": "agent-9", "attempt": 3}"#,
        Refused(ErrorCode::LeaseLost, "attempt 3"),
    ),
    (
        InitialState::Lapsed,
        r#"{"assignee": "agent-9", "attempt": 2}"#,
        Refused(ErrorCode::Superseded, "attempt 3 (agent-9)"),
    ),
    (NeverClaimed, r#"{"assignee": "agent-9", "attempt": 2}"#, Refused(ErrorCode::Superseded, "never begun")),
    // in_progress → in_progress: only for the same assignee, named explicitly.
    (Held, r#"{"assignee": "agent-9"}"#, Renewed),
    (Held, r#"{"status": "in_progress", "assignee": "agent-9", "attempt": 3}"#, Renewed),
    (
        Held,
        r#"{"assignee": "agent-1"}"#,
        Refused(ErrorCode::ClaimLost, "agent-9 (attempt 3, until 2026-05-01T12:01"),
    ),
    (Held, r#"{"status": "in_progress"}"#, Refused(ErrorCode::ClaimLost, "agent-9")),
    (
        Held,
        r#"{"assignee": "agent-9", "attempt": 2}"#,
        Refused(ErrorCode::Superseded, "attempt 2 was superseded by attempt 3"),
    ),
    // in_progress → completed, failed.
    (Held, r#"{"status": "completed"}"#, Steps(&[COMPLETED], 3, HOLDER)),
    (Held, r#"{"status": "failed", "attempt": 3, "assignee": "agent-9"}"#, Steps(&[FAILED], 3, HOLDER)),
    (
        Held,
        r#"{"status": "completed", "attempt": 2}"#,
        Refused(ErrorCode::Superseded, "attempt 2 was superseded by attempt 3 (agent-9)"),
    ),
    (Held, r#"{"status": "failed", "attempt": 4}"#, Refused(ErrorCode::Superseded, "never begun")),
    (Held, r#"{"status": "completed", "assignee": "agent-1"}"#, Refused(ErrorCode::ClaimLost, "agent-9")),
    // pending → completed: the caller claims and completes in one change.
    (NeverClaimed, r#"{"status": "completed", "assignee": "agent-1"}"#, Steps(&[Claimed, COMPLETED], 1, ME)),
    (GivenBack, r#"{"status": "completed"}"#, Steps(&[Claimed, COMPLETED], 4, KEY)),
    (GivenBack, r#"{"status": "completed", "attempt": 3}"#, Steps(&[Claimed, COMPLETED], 4, KEY)),
    (
        InitialState::Lapsed,
        r#"{"status": "completed", "assignee": "agent-1"}"#,
        Steps(&[Claimed, COMPLETED], 4, ME),
    ),
    (JustDue, r#"{"status": "completed"}"#, Steps(&[Ready, Claimed, COMPLETED], 1, KEY)),
    (Blocked, r#"{"status": "completed"}"#, Refused(ErrorCode::Blocked, "(failed)")),
    (LapsedBlocked, r#"{"status": "completed"}"#, Refused(ErrorCode::Blocked, "tkt_")),
    (Waiting, r#"{"status": "completed"}"#, Refused(ErrorCode::NotYet, "not_before")),
    (GivenBack, r#"{"status": "completed", "attempt": 2}"#, Refused(ErrorCode::Superseded, "attempt 2")),
    // pending → failed: always permitted; the attempt does not change.
    (NeverClaimed, r#"{"status": "failed"}"#, Steps(&[FAILED], 0, None)),
    (Blocked, r#"{"status": "failed", "assignee": "agent-1"}"#, Steps(&[FAILED], 0, None)),
    (Waiting, r#"{"status": "failed"}"#, Steps(&[FAILED], 0, None)),
    (InitialState::Lapsed, r#"{"status": "failed"}"#, Steps(&[FAILED], 3, None)),
    // pending → completed, failed with the last attempt: late, even if the ticket is not ready.
    (InitialState::Lapsed, r#"{"status": "completed", "attempt": 3}"#, Steps(&[COMPLETED], 3, HOLDER)),
    (
        LapsedBlocked,
        r#"{"status": "completed", "attempt": 3, "assignee": "agent-9"}"#,
        Steps(&[COMPLETED], 3, HOLDER),
    ),
    (LapsedBlocked, r#"{"status": "failed", "attempt": 3}"#, Steps(&[FAILED], 3, HOLDER)),
    (
        InitialState::Lapsed,
        r#"{"status": "completed", "attempt": 3, "assignee": "agent-1"}"#,
        Refused(ErrorCode::Superseded, "agent-9"),
    ),
    (
        InitialState::Lapsed,
        r#"{"status": "completed", "attempt": 1}"#,
        Refused(ErrorCode::Superseded, "attempt 1"),
    ),
    // in_progress → pending: a release.
    (Held, r#"{"status": "pending"}"#, Steps(&[Released, Ready], 3, None)),
    (Held, r#"{"assignee": null}"#, Steps(&[Released, Ready], 3, None)),
    (Held, r#"{"status": "pending", "retry_after_ms": 1}"#, Steps(&[Released], 3, None)),
    (
        Held,
        r#"{"status": "pending", "attempt": 3, "assignee": "agent-9"}"#,
        Steps(&[Released, Ready], 3, None),
    ),
    (Held, r#"{"status": "pending", "attempt": 2}"#, Refused(ErrorCode::Superseded, "attempt 2")),
    (Held, r#"{"status": "pending", "assignee": "agent-1"}"#, Refused(ErrorCode::ClaimLost, "agent-9")),
    // failed → pending: a retry.
    (Failed, r#"{"status": "pending"}"#, Steps(&[Reopened, Ready], 3, None)),
    (Failed, r#"{"status": "pending", "retry_after_ms": 5}"#, Steps(&[Reopened], 3, None)),
    // terminal → the same status, with the same result or none.
    (Completed, r#"{"status": "completed"}"#, Nothing),
    (Completed, r#"{"status": "completed", "result": {"word": "old"}}"#, Nothing),
    (Completed, r#"{"result": {"word": "old"}}"#, Nothing),
    (Failed, r#"{"status": "failed", "attempt": 3}"#, Nothing),
    (FailedWithoutResult, r#"{"status": "failed", "result": null}"#, Nothing),
    (
        Completed,
        r#"{"status": "completed", "result": {"word": "new"}}"#,
        Refused(ErrorCode::TicketState, "result"),
    ),
    (Completed, r#"{"status": "completed", "result": null}"#, Refused(ErrorCode::TicketState, "result")),
    (FailedWithoutResult, r#"{"status": "failed", "result": {}}"#, Refused(ErrorCode::TicketState, "result")),
    (Failed, r#"{"status": "failed", "attempt": 2}"#, Refused(ErrorCode::Superseded, "attempt 2")),
    // pending → pending.
    (NeverClaimed, r#"{"status": "pending"}"#, Nothing),
    (Blocked, r#"{"assignee": null}"#, Nothing),
    (InitialState::Lapsed, r#"{"status": "pending", "attempt": 3}"#, Nothing),
    // failed → in_progress, completed; completed → anything else; a result alone.
    (Failed, r#"{"status": "in_progress"}"#, Refused(ErrorCode::TicketState, "retry it")),
    (Failed, r#"{"assignee": "agent-9"}"#, Refused(ErrorCode::TicketState, "failed")),
    (Failed, r#"{"assignee": null}"#, Refused(ErrorCode::TicketState, "retry it")),
    (Failed, r#"{"status": "completed"}"#, Refused(ErrorCode::TicketState, "retry it")),
    (Completed, r#"{"status": "in_progress"}"#, Refused(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"status": "failed"}"#, Refused(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"status": "pending"}"#, Refused(ErrorCode::TicketState, "completed")),
    (Completed, r#"{"assignee": null}"#, Refused(ErrorCode::TicketState, "completed")),
    (Held, r#"{"result": {"word": "new"}}"#, Refused(ErrorCode::TicketState, "result")),
    (NeverClaimed, r#"{"result": {}}"#, Refused(ErrorCode::TicketState, "result")),
];

#[test]
fn every_row_of_the_transition_table_holds() {
    for (from, request, expected) in TABLE {
        let before = ticket(*from);
        let request: ChangeTicket = serde_json::from_str(request).unwrap();
        let command = parse_transition(&request, "the key").unwrap().unwrap();
        let decided = decide(&before, &command, now());
        let at = format!("{from:?} {}: {decided:?}", serde_json::to_string(&request).unwrap());
        match (*expected, decided) {
            (Nothing, Ok(Decision::Nothing)) | (Renewed, Ok(Decision::Renewed(_))) => {}
            (Refused(code, word), Err(refusal)) => {
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
fn heartbeats_renew_only_the_current_attempt() {
    let beat = |attempt: Option<u32>, assignee: Option<&str>| {
        let assignee = assignee.map(str::to_owned);
        Command::Heartbeat(Heartbeat { attempt, assignee, ..Heartbeat::default() })
    };
    for (from, attempt, assignee, expected) in [
        (Held, None, None, Ok(())),
        (Held, Some(3), HOLDER, Ok(())),
        (Held, Some(2), None, Err(ErrorCode::Superseded)),
        (Held, Some(4), None, Err(ErrorCode::Superseded)),
        (Held, Some(3), ME, Err(ErrorCode::ClaimLost)),
        (InitialState::Lapsed, Some(3), None, Err(ErrorCode::LeaseLost)),
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
fn end_attempt(counted: u32, cause: EndCause) -> (Vec<StepKind>, Ticket) {
    let before = Ticket { counted_attempts: counted, ..ticket(Held) };
    match decide(&before, &Command::EndAttempt { attempt: 3, cause, earlier: Vec::new() }, now()) {
        Ok(Decision::Changed(steps)) => {
            (steps.iter().map(|step| step.kind).collect(), steps.last().unwrap().ticket.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn expired_attempts_back_off_and_finally_fail_the_ticket() {
    for cause in [EndCause::LeaseExpired, EndCause::MaxRuntime, EndCause::VmEnded, EndCause::CommandEnded] {
        let (steps, after) = end_attempt(0, cause);
        assert_eq!(steps, [StepKind::Expired(cause), Ready], "the first retry is at once");
        assert_eq!((after.counted_attempts, after.wait), (1, Wait::None));
        for (counted, seconds) in [(1, 10), (2, 20), (3, 40)] {
            let (steps, after) = end_attempt(counted, cause);
            assert_eq!(steps, [StepKind::Expired(cause)]);
            assert_eq!(after.wait, Wait::Until(now() + seconds.seconds()));
        }
        let (steps, after) = end_attempt(4, cause);
        assert_eq!(steps, [StepKind::Expired(cause), FAILED]);
        let result = after.finish().unwrap().result.clone().unwrap();
        assert_eq!(
            (&result["error"], &result["attempts"][0]["attempt"]),
            (&"max_attempts".into(), &3.into())
        );
    }
    // The deletion of the VM by request does not count.
    let (steps, after) = end_attempt(4, EndCause::VmDeleted);
    assert_eq!((steps, after.counted_attempts), (vec![Released, Ready], 4));
}

#[test]
fn ending_an_older_attempt_has_no_effect() {
    for (from, attempt) in
        [(Held, 2), (Held, 4), (GivenBack, 3), (InitialState::Lapsed, 3), (Completed, 3), (Failed, 3)]
    {
        let command = Command::EndAttempt { attempt, cause: EndCause::LeaseExpired, earlier: Vec::new() };
        assert_eq!(decide(&ticket(from), &command, now()), Ok(Decision::Nothing), "{from:?}");
    }
}

#[test]
fn the_ready_event_is_emitted_once_and_only_without_blockers() {
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
fn a_retry_resets_counted_attempts_and_keeps_the_attempt_number() {
    let request: ChangeTicket = serde_json::from_str(r#"{"status": "pending"}"#).unwrap();
    let command = parse_transition(&request, "the key").unwrap().unwrap();
    let Ok(Decision::Changed(steps)) = decide(&ticket(Failed), &command, now()) else {
        panic!("it is retried")
    };
    assert_eq!((steps[0].ticket.counted_attempts, steps[0].ticket.attempt), (0, 3));
}

#[test]
fn a_late_finish_keeps_the_vm_of_its_attempt() {
    let vm = Some(VmId::generate());
    let lapsed = Some(LapsedHolder { assignee: "agent-9".to_owned(), vm });
    let before = Ticket { state: State::Pending { lapsed }, ..ticket(InitialState::Lapsed) };
    let request: ChangeTicket = serde_json::from_str(r#"{"status": "completed", "attempt": 3}"#).unwrap();
    let command = parse_transition(&request, "the key").unwrap().unwrap();
    let Ok(Decision::Changed(steps)) = decide(&before, &command, now()) else {
        panic!("it is finished late")
    };
    assert_eq!(steps[0].ticket.vm(), vm);
}
