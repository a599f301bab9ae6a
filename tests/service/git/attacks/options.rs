//! Values of a request that begin with a dash, which git could take for options.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};

use super::with_remote;
use crate::{
    git::{refused, send},
    harness::Skep,
};

#[tokio::test]
async fn what_begins_with_a_dash_is_never_an_option() {
    let skep = Skep::start().await;
    let path = with_remote(&skep);
    let target = skep.at("written");
    for evil in ["--output=written", "-u", "--upload-pack=touch written", "--exec=touch written", "-"] {
        for query in
            [format!("log?ref={evil}"), format!("diff?from={evil}"), format!("diff?from=HEAD&to={evil}")]
        {
            let response = skep.get(&format!("/api/git/{query}&path={path}")).await;
            let message = refused(response, 400, "invalid_value").await;
            assert!(message.contains(evil), "{message}");
        }
        let bodies: Vec<(&str, Value)> = vec![
            ("checkout", json!({"path": path, "ref": evil})),
            ("checkout", json!({"path": path, "ref": evil, "create": true})),
            ("branch", json!({"path": path, "name": evil})),
            ("branch", json!({"path": path, "name": "x", "from": evil})),
            ("reset", json!({"path": path, "to": evil})),
            ("push", json!({"path": path, "remote": evil})),
            ("push", json!({"path": path, "branch": evil})),
            ("pull", json!({"path": path, "remote": evil})),
            ("pull", json!({"path": path, "branch": evil})),
            ("worktree", json!({"path": path, "worktree": skep.at("tree"), "ref": evil})),
            ("clone", json!({"path": skep.at("clone"), "url": path, "branch": evil})),
        ];
        for (verb, body) in bodies {
            refused(send(&skep, verb, body).await, 400, "invalid_value").await;
        }
        let url = json!({"path": skep.at("clone"), "url": evil});
        refused(send(&skep, "clone", url).await, 403, "remote_forbidden").await;
        // Names of files and folders may begin with a dash.
        fs::write(format!("{path}/{evil}"), "x").unwrap_or_default();
        let response = skep.get(&format!("/api/git/log?file={evil}&path={path}")).await;
        assert_eq!(response.status(), 200, "{evil}");
        assert_ne!(send(&skep, "add", json!({"path": path, "files": [evil]})).await.status(), 500);
    }
    let dashed = skep.at("-tree");
    assert_eq!(send(&skep, "init", json!({"path": dashed})).await.status(), 201);
    assert!(!Path::new(&target).exists() && !Path::new(&path).join("written").exists());
    let stash = json!({"path": path, "action": "push", "message": "--all"});
    assert_ne!(skep.request(Method::POST, "/api/git/stash").json(&stash).send().await.unwrap().status(), 500);
}
