//! A server of the release binary, and checks that it leaves nothing behind.

pub mod faults;
pub mod images;
mod leftovers;
mod output;
mod raw_http;
mod server;
mod tenants;
mod vms;

pub use leftovers::{left_by_server as remains_of, of_bake as left_of_bake, of_vms as remains_of_vms};
pub use output::{answer, printed, stdout_on_server, step};
pub use server::{
    Answer, Skep, StoppedServer, binary, command, limit_open_files, output_of, send, serve, serve_anywhere,
    small_vms, try_send, with_vms, write_program,
};
pub use tenants::Tenant;
pub use vms::connect_in_namespace;

pub use crate::{
    eventually, eventually_empty, eventually_within,
    process::{kill, status_field},
    receiver::Receiver,
    temp_dir, unique_name,
};
