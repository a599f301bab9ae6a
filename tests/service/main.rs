//! Tests of the HTTP API on a real socket and a real store, without VMs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use skep_harness::service as harness;

mod access;
mod account_roots;
mod accounts;
mod audit;
mod auth;
mod boot;
mod clock;
mod dashboard;
mod disk_space;
mod docs;
mod duplex;
mod errors;
mod events;
mod exec;
mod files;
mod git;
mod keys;
mod lost_updates;
mod metrics;
mod open_metrics;
mod openapi;
mod openapi_completeness;
mod openapi_integers;
mod papers;
mod restart;
mod roles;
mod rotation;
mod routes;
mod session;
mod session_links;
mod store_faults;
mod streams;
mod system;
mod templates;
mod tickets;
mod transport;
mod unread;
mod vm_listener;
mod vms;
mod waitlist;
mod webhooks;
