//! Hooks of a repository and of its local remote.

use std::path::Path;

use super::attack;

#[tokio::test]
async fn no_hook_is_run() {
    attack(
        "hooks",
        |path, canary| {
            for hook in [
                "pre-commit",
                "commit-msg",
                "post-commit",
                "post-checkout",
                "pre-push",
                "post-merge",
                "pre-rebase",
            ] {
                canary.hook(&Path::new(path).join(".git/hooks"), hook);
            }
        },
        &[&["commit", "-qam", "x"]],
    )
    .await;
    attack(
        "hooks of a local remote",
        |path, canary| {
            let remote = Path::new(path).parent().unwrap().join("remote.git");
            for hook in ["pre-receive", "update", "post-receive", "reference-transaction"] {
                canary.hook(&remote.join("hooks"), hook);
            }
        },
        &[&["push", "-f", "origin", "HEAD:refs/heads/control"]],
    )
    .await;
}
