//! Copies files and folders between this machine, the server's workspace and VMs.

mod copy;
mod local;
mod path_argument;
mod plan;
mod remote;

pub(crate) use copy::{CopySummary, copy};
pub(crate) use path_argument::PathArgument;
pub(crate) use remote::{absolute, is_folder};
