//! The routes, one file for each resource. Extractors check the caller and the request before a handler runs.

use utoipa_axum::router::UtoipaMethodRouter;

pub(crate) mod accounts;
pub(crate) mod admin;
pub(crate) mod audit;
pub(crate) mod boot;
mod boot_work;
mod content;
pub(crate) mod dashboard;
pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod exec;
mod exec_duplex;
mod exec_request;
pub(crate) mod exec_state;
pub(crate) mod exec_stream;
pub(crate) mod files;
pub(crate) mod git_credentials;
pub(crate) mod handle;
pub(crate) mod health;
pub(crate) mod keys;
pub(crate) mod metrics;
pub(crate) mod openapi;
pub(crate) mod operations;
pub(crate) mod page;
pub(crate) mod raw;
pub(crate) mod session;
pub(crate) mod swarm;
pub(crate) mod swarm_metrics;
pub(crate) mod system;
pub(crate) mod templates;
pub(crate) mod tickets;
pub(crate) mod vms;
pub(crate) mod waitlist;
pub(crate) mod watch;
pub(crate) mod webhooks;
pub(crate) mod whoami;

use crate::{error::Refusal, json::Json};

/// Routes with their OpenAPI descriptions. The router takes no route without one.
pub(crate) type Routes = Vec<UtoipaMethodRouter>;

pub(crate) type Answer<T> = Result<Json<T>, Refusal>;
