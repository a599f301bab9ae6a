//! Operations on a place with files, git and a shell. The server and the guest agent run this very crate.
//!
//! An operation is a value of `skep_api`; [`Run`] does it at a [`Place`], and [`run_by_name`] finds it by its name.

mod error;
pub mod exec;
mod fence;
mod files;
pub mod git;
mod leash;
mod operations;
mod place;
mod roots;
mod search;
mod streamed;
mod watch;

pub use error::Error;
pub use exec::{Commands, Output, Running};
pub use fence::{Denials, Fence};
pub use files::EntryLocks;
pub use operations::{Run, run_by_name};
pub use place::{GitFence, Place, WalkFence};
pub use roots::{Location, Roots, open_root};
pub use streamed::{Content, RunStreamed, no_content, run_streamed_by_name};
