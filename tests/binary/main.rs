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
mod without_root;

mod bake;
mod clients;
mod clock;
mod clones;
mod command;
mod confinement;
mod copies;
mod crash;
mod disk_quota;
mod disk_speed;
mod duplex;
mod egress;
mod escape;
mod exec;
mod faults;
mod files;
mod forks;
mod full_disk;
mod git;
mod hogs;
mod identity;
mod idle;
mod isolation;
mod killed_test;
mod memory;
mod memory_guard;
mod pause;
mod pause_to_disk;
mod pool;
mod processes;
mod programs;
mod qemu_update;
mod random_kills;
mod readme;
mod schemathesis;
mod separation;
mod sizes;
mod small_server;
mod snapshots;
#[cfg(feature = "soak")]
mod soak;
mod spoofing;
mod steps;
mod stopping;
mod swarm;
mod takeover;
mod takeover_without_base;
mod template;
mod template_updates;
mod templates;
mod tenants;
#[cfg(feature = "update")]
mod update;
mod usage;
mod vm_api;
mod without_memory;
#[cfg(feature = "soak")]
mod without_reseed;
