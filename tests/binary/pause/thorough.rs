//! Kills at each step of a pause and of a resume.

use reqwest::Method;
use serde_json::json;

use super::{WHILE, at, booted};
use crate::{
    harness::{Skep, temp_dir},
    steps::{Log, OPTIONS, Step, Victim},
    takeover::{assert_in_order, listed},
};

/// What the log says after the steps of both requests, which take turns.
const STEPS: [(&str, Step); 4] = [
    ("pause", &["the processors of VM", "are stopped"]),
    ("resume", &["the processors of VM", "are started"]),
    ("pause", &["is paused on record"]),
    ("resume", &["is resumed on record"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_a_pause_or_a_resume_leaves_the_state_on_record() {
    let mut skep = Skep::start_on(temp_dir(), &OPTIONS).await;
    let (counting, control) = (booted(&skep).await, booted(&skep).await);
    let victims = [Victim::Server, Victim::Keeper, Victim::Both];
    for (victim, (verb, step)) in victims.into_iter().flat_map(|victim| STEPS.map(|step| (victim, step))) {
        let path = format!("{}/{verb}", at(&skep, &counting).path);
        let log = Log::from_now(&skep);
        let request = tokio::spawn(skep.request(Method::POST, &path).json(&json!({})).send());
        skep = victim.kill_at(step, log, skep).await;
        let answered = request.await.unwrap().is_ok_and(|answer| answer.status() == 200);
        let (vm, other) = (at(&skep, &counting), at(&skep, &control));
        let state = skep.get(&vm.path).await.ok(200)["state"].clone();
        let asked_for = if verb == "pause" { "paused" } else { "running" };
        assert!(
            !answered || state == asked_for,
            "{victim:?} killed after {step:?}: {state} after an answered {verb}"
        );
        other.counts_on().await;
        let number = vm.last().await;
        if state == "running" {
            vm.passes(number + WHILE).await;
            vm.assert_clock_is_right().await;
        } else {
            other.counts_on().await;
            assert_eq!(vm.last().await, number, "{victim:?} killed after {step:?}");
        }
        // The next round asks for the other state.
        if asked_for == "paused" {
            vm.pause().await
        } else {
            vm.resume().await
        };
    }
    at(&skep, &counting).resume().await;
    assert_eq!(listed(&skep).await.len(), 2);
    assert_in_order(&skep).await;
}
