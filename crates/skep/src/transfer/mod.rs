//! Copies files and folders between this machine, the server's workspace and VMs.

mod copy;
mod here;
mod plan;
mod spot;
mod there;

pub(crate) use copy::{Copied, copy};
pub(crate) use spot::Spot;
pub(crate) use there::{absolute, is_folder};
