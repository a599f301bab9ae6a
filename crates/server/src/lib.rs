//! The HTTP service: authentication, authorization, routing and the shape of answers. Rules live in the inner crates.

mod access_watch;
mod account_roots;
mod answer_body;
mod app;
mod audit;
mod audit_context;
mod auth;
mod background;
mod bearer;
mod body;
mod body_stream;
pub mod confine;
mod csv_text;
mod documented_routes;
mod door;
mod error;
mod events;
mod extract;
mod helper;
mod json;
mod key_uses;
mod memory;
mod metrics;
mod negotiate;
mod openapi;
mod operation_runner;
mod own_url;
mod percent;
mod random;
mod request;
mod request_log;
mod restart;
mod routes;
mod run;
mod seal;
mod server_error;
mod session;
mod session_host;
mod session_links;
mod sse;
mod swarm_handle;
mod template_builds;
mod tickets;
mod utf8_decoder;
mod vault;
mod watchers;
mod webhooks;
mod workspace_disk;
mod workspaces;

pub use account_roots::{RootError, RootRules};
pub use app::{Parts, router};
pub use audit::AuditQueue;
pub use door::{
    limits::{InvalidRate, Limits, Rate},
    origin::TrustedProxies,
    tls,
};
pub use error::SKEP_ERROR;
pub use helper::StartHelper;
pub use key_uses::KeyUses;
pub use metrics::{Metrics, check_metrics_address};
pub use own_url::PublicUrl;
pub use request::{API_VERSION, REQUEST_ID};
pub use restart::{Restart, ShutdownKind};
pub use routes::{boot::BootDefaults, dashboard::Dashboard};
pub use run::{ServerOptions, check_address, run};
pub use server_error::Error;
pub use session_links::link_for_operator;
pub use swarm_handle::{SwarmReceiver, ready_swarm};
pub use webhooks::{RetryPolicy, WebhookSettings};
pub use workspace_disk::WorkspaceDisk;
