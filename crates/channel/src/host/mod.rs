//! The server's end: a guest that is spoken to.
//!
//! The guest may be hostile. What it sends is limited where it is read: header lists, frames, answers; nothing of it
//! is trusted to be well-formed.

mod answer;
mod cancel;
mod control;
mod error;
mod guest;
mod line;
mod pieces;
mod resync;
mod stream;
mod streamed;

pub use control::ExecControl;
pub use error::Error;
pub use guest::{Guest, new_exec_id};
pub use stream::ExecStream;
