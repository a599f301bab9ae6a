//! Processes are killed at random times during forks, snapshots, pauses to disk and resumes: what was answered is there, nothing
//! half-made is listed, and nothing else is left.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Fault, KnownVms, Rng, inject};
use crate::{
    copies::{State, assert_goes_on, begin, path_of},
    forks::thorough::kills::{only_the_parent_is_left, was_answered, was_not_answered},
    harness::{Answer, Skep, send, try_send},
    takeover::{VICTIMS, ids, listed},
};

/// The faults that do not end the VM.
const FAULTS: [Fault; 4] =
    [Fault::Planned, Fault::Killed(VICTIMS[0]), Fault::Killed(VICTIMS[1]), Fault::Killed(VICTIMS[2])];
/// The latest moment of a fault, in ms: a copy takes about as long.
const LATEST_MS: u64 = 1500;
/// The environment variable with the number of rounds for each verb, which `make soak` sets. The default is one.
const ROUNDS: &str = "SOAK_COPY_ROUNDS";

/// A VM, and what it must keep.
struct Original {
    vm: Value,
    wanted: State,
    /// The last number of its program that was seen.
    count: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_pauses_are_done_or_undone_whichever_process_is_killed() {
    let mut dice = Rng::seeded();
    let mut skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &vm).await;
    let mut original = Original { vm, wanted, count: 1 };
    let rounds: usize = std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap());
    for verb in ["fork", "snapshot", "pause", "resume"].repeat(rounds) {
        let fault = dice.one_of(&FAULTS).unwrap();
        let after_ms = dice.below(LATEST_MS);
        let what = format!("{verb}, {fault:?} after {after_ms} ms");
        eprintln!("{what}");
        if verb == "resume" {
            let path = format!("{}/pause", path_of(&original.vm));
            skep.post(&path, &json!({"to": "disk"})).await.ok(200);
        }
        let request = tokio::spawn(try_send(request(&skep, &original.vm, verb)));
        // At a random time, which is the purpose of this test.
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        (skep, _) = inject(fault, skep, &KnownVms::new(), &mut dice).await;
        let answer = request.await.unwrap().ok();
        check(&skep, &mut original, verb, answer.as_ref(), &what).await;
    }
}

fn request(skep: &Skep, vm: &Value, verb: &str) -> reqwest::RequestBuilder {
    let body = match verb {
        "fork" => json!({"count": 2}),
        "snapshot" => json!({"name": "stored"}),
        "pause" => json!({"to": "disk"}),
        _ => json!({}),
    };
    skep.request(Method::POST, &format!("{}/{verb}", path_of(vm))).json(&body)
}

/// Fails unless the VM is as it was answered, runs on, and all copies are complete. Removes the copies.
async fn check(skep: &Skep, original: &mut Original, verb: &str, answer: Option<&Answer>, what: &str) {
    let path = path_of(&original.vm);
    let found = skep.get(&path).await.ok(200);
    let is_answered = answer.is_some_and(|answer| answer.status.is_success());
    let allowed: &[&str] = match verb {
        "pause" if is_answered => &["paused"],
        "pause" => &["paused", "running"],
        "resume" if !is_answered => &["paused", "running"],
        _ => &["running"],
    };
    assert!(allowed.iter().any(|state| found["state"] == *state), "{what}: {found}");
    if found["state"] == "paused" {
        assert_eq!(found["paused_to"], "disk", "{what}: {found}");
        send(skep.request(Method::POST, &format!("{path}/resume"))).await.ok(200);
    }
    let running = skep.get(&path).await.ok(200);
    original.count = assert_goes_on(skep, &running, &original.wanted, original.count).await;
    match answer {
        Some(answer) if answer.status == 201 => was_answered(skep, answer, &original.wanted).await,
        _ => was_not_answered(skep, &original.vm, &original.wanted, what).await,
    }
    only_the_parent_is_left(skep, &original.vm).await;
    assert_eq!(ids(&listed(skep).await), ids(std::slice::from_ref(&original.vm)), "{what}");
}
