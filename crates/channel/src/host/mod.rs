//! The host end of the channel: a client for guest agents.
//!
//! The guest may be hostile. Everything it sends is limited where it is read (header lists, frames, answers) and
//! validated.

mod answer;
mod answer_memory;
mod cancel;
mod commands;
mod control;
mod error;
mod guest;
mod magic_split;
mod prefixed_stream;
mod resync;
mod stream;
mod streamed;

pub use answer_memory::AnswerMemory;
pub use control::ExecControl;
pub use error::Error;
pub use guest::{Guest, new_exec_id};
pub use stream::ExecStream;
