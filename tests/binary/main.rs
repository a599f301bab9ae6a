//! Tests of the release binary: its command, and over HTTP a server on a free port with a real store and real VMs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use skep_harness::binary as harness;

mod audit;
mod backup;
mod doctor;
mod errors;
mod health;
mod http;
mod keys;
mod metrics;
mod restart;
mod secrets;
mod service;
mod session;
mod settings;
mod terminal;
mod tickets;
mod tls;
mod webhooks;
#[cfg(not(feature = "root"))]
mod without_root;

#[cfg(feature = "root")]
mod bake;
#[cfg(feature = "root")]
mod clients;
#[cfg(feature = "root")]
mod clock;
#[cfg(feature = "root")]
mod clones;
#[cfg(feature = "root")]
mod command;
#[cfg(feature = "root")]
mod confinement;
#[cfg(feature = "root")]
mod copies;
#[cfg(feature = "root")]
mod crash;
#[cfg(feature = "root")]
mod disk_quota;
#[cfg(feature = "root")]
mod disk_speed;
#[cfg(feature = "root")]
mod duplex;
#[cfg(feature = "root")]
mod egress;
#[cfg(feature = "root")]
mod escape;
#[cfg(feature = "root")]
mod exec;
#[cfg(feature = "root")]
mod faults;
#[cfg(feature = "root")]
mod files;
#[cfg(feature = "root")]
mod forks;
#[cfg(feature = "root")]
mod full_disk;
#[cfg(feature = "root")]
mod git;
#[cfg(feature = "root")]
mod hogs;
#[cfg(feature = "root")]
mod identity;
#[cfg(feature = "root")]
mod idle;
#[cfg(feature = "root")]
mod isolation;
#[cfg(feature = "root")]
mod memory;
#[cfg(feature = "root")]
mod memory_guard;
#[cfg(feature = "root")]
mod pause;
#[cfg(feature = "root")]
mod pause_to_disk;
#[cfg(feature = "root")]
mod pool;
#[cfg(feature = "root")]
mod processes;
#[cfg(feature = "root")]
mod programs;
#[cfg(feature = "root")]
mod qemu_update;
#[cfg(feature = "root")]
mod random_kills;
#[cfg(feature = "root")]
mod readme;
#[cfg(feature = "root")]
mod schemathesis;
#[cfg(feature = "root")]
mod separation;
#[cfg(feature = "root")]
mod sizes;
#[cfg(feature = "root")]
mod small_server;
#[cfg(feature = "root")]
mod snapshots;
#[cfg(feature = "soak")]
mod soak;
#[cfg(feature = "root")]
mod spoofing;
#[cfg(feature = "root")]
mod steps;
#[cfg(feature = "root")]
mod stopping;
#[cfg(feature = "root")]
mod swarm;
#[cfg(feature = "root")]
mod takeover;
#[cfg(feature = "root")]
mod takeover_without_base;
#[cfg(feature = "root")]
mod template;
#[cfg(feature = "root")]
mod template_updates;
#[cfg(feature = "root")]
mod templates;
#[cfg(feature = "root")]
mod tenants;
#[cfg(feature = "update")]
mod update;
#[cfg(feature = "root")]
mod usage;
#[cfg(feature = "root")]
mod vm_api;
#[cfg(feature = "root")]
mod without_memory;
#[cfg(feature = "soak")]
mod without_reseed;
