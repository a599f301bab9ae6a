//! The verbs, a file for each.

pub(crate) mod account;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bake;
pub(crate) mod bench;
pub(crate) mod boot;
pub(crate) mod cleanup;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod keys;
pub(crate) mod ps;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod server_process;
pub(crate) mod status;
pub(crate) mod ticket;
pub(crate) mod webhook;
