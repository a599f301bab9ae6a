//! Runs the operations that arrive over a channel. The guest agent in a VM and the helpers on the server's machine share
//! this code: they differ in the workspace that they run an operation in.

mod operations;
mod reaper;

pub use operations::{attach, cancel, run, run_streamed, start};
pub use reaper::reap_orphans;
