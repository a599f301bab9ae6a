//! More operations, and those with a remote from the server's workspace too.

use super::{
    a_history, branches_and_work_trees,
    push_and_pull::{diverged_branches, sends_and_fetches, shallow_clones, what_is_refused},
    remote::Remote,
    verbs,
};
use crate::{
    files::fixture::{Fixture, in_both_places},
    harness::{Skep, temp_dir},
};

#[tokio::test]
async fn tags_merges_and_remotes_are_the_same_on_the_server_and_in_a_vm() {
    in_both_places(async |fixture| {
        a_history(fixture).await;
        branches_and_work_trees(fixture).await;
        verbs::tags_merges_and_remotes(fixture).await;
    })
    .await;
}

#[tokio::test]
async fn the_server_pushes_and_pulls_as_vms_do() {
    let remote = Remote::start();
    let skep = Skep::start_on(temp_dir(), &["--git-allow", "127.0.0.1"]).await;
    let fixture = Fixture::on_the_server(&skep).await;
    sends_and_fetches(&fixture, &remote).await;
    shallow_clones(&fixture, &remote).await;
    diverged_branches(&fixture, &remote).await;
    what_is_refused(&fixture, &remote).await;
}
