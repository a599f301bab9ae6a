//! Operations on a workspace: files, git and commands. The server and the guest agent both run this crate.
//!
//! An operation is a value of `skep_api`. [`Run`] executes it at a [`Place`]; [`run_by_name`] looks the operation up
//! by its name.

mod cancellation;
mod disk_space;
mod error;
pub mod exec;
mod fence;
mod files;
pub mod git;
#[cfg(test)]
mod held_work;
mod operations;
mod place;
mod roots;
mod search;
mod streamed;
mod watch;

pub use disk_space::{DiskSpace, ENTRY_BYTES};
pub use error::Error;
pub use exec::{Commands, Output, Running, kill_descendants};
pub use fence::{Fence, SyscallFilter};
pub use files::{EntryLocks, occupied_bytes};
pub use operations::{Run, run_by_name};
pub use place::{GitFence, Place, WalkFence};
pub use roots::{Location, Roots, open_root};
pub use streamed::{Content, RunStreamed, no_content, run_streamed_by_name};
