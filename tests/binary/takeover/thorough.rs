//! Further ends of server and keeper, by kills and by a service manager.

use serde_json::json;

use super::{
    Streamed, VICTIMS, Victim, an_interrupted_end_is_complete_or_has_no_effect,
    vms_and_their_commands_survive, vms_of_an_unanswered_boot_end_after,
};
use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn vms_and_their_commands_survive_a_kill_of_both() {
    vms_and_their_commands_survive(&[Victim::Both]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_unanswered_boot_end_after_a_kill_of_both() {
    vms_of_an_unanswered_boot_end_after(&[Victim::Both]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_end_of_a_vm_is_complete_or_has_no_effect_whoever_is_killed() {
    an_interrupted_end_is_complete_or_has_no_effect(&VICTIMS).await;
}

/// The server ends such a stream shortly before its own time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_tells_streams_how_to_resume() {
    let mut skep = Skep::start().await;
    let pid = skep.boot_one().await;
    let command = "echo one; while ! test -e go; do sleep 0.1; done; echo two; exit 3";
    let mut streamed = Streamed::begin(&skep, pid, command).await;
    streamed.wait_for_output(4).await;
    skep.ask_to_stop();
    let (kind, data) = streamed.rest().await.unwrap();
    assert_eq!((kind.as_str(), &data["code"]), ("error", &json!("shutting_down")), "{data}");
    let skep = skep.stop_and_leave_vms().start().await;
    let mut streamed = streamed.again(&skep, pid).await;
    skep.output(pid, "touch go").await;
    let (_, exit) = streamed.rest().await.unwrap();
    assert_eq!((streamed.stdout.as_str(), &exit["exit_code"]), ("one\ntwo\n", &json!(3)));
}
