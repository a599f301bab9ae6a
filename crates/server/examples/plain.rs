//! The baseline for measurements of `GET /api/whoami`: the same framework with a minimal handler, which looks up no key.
//! `benches/door` starts it, once `cargo build --release --package skep-server --example plain` has built it.

use std::net::SocketAddr;

use axum::{Json, Router, routing::get};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let router = Router::new().route("/api/whoami", get(whoami));
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    println!("http://{}", listener.local_addr()?);
    // A shell's background jobs ignore Ctrl-C, unless they ask for it.
    let ended = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, router).with_graceful_shutdown(ended).await
}

/// As much text as the real answer has.
async fn whoami() -> Json<Value> {
    Json(json!({
        "key": {"id": "key_01j00000000000000000000000", "prefix": "sk-skep-prod-00000000", "name": "admin"},
        "account": {"id": "acct_01j00000000000000000000000", "name": "default"},
        "scopes": ["files:read", "files:write", "git:read", "git:write", "swarm:read", "swarm:write", "swarm:exec",
            "tickets:read", "tickets:write", "metrics:read", "admin", "server:admin"],
        "roots": ["/var/lib/skep/workspaces/default"],
        "limits": {"max_vms": null, "max_memory_mb": null, "max_paused_vms": null, "max_disk_mb": null},
        "vm": null,
    }))
}
