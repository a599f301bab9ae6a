//! An operation over HTTP/2 on one byte stream between the server and a guest agent; identity at restore.
//!
//! The stream survives both ends: either may lose track of the other in the middle of a frame. So each connection of
//! the host begins with a [`marker`](mod@marker), which the guest looks for at any time and answers with itself;
//! behind it begins a new HTTP/2 connection.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /identity` | [`Identity`] | [`IdentityReport`] |
//! | `POST /hand-out` | [`HandOut`] | [`HandOutReport`] |
//! | `POST /rest` | | `{}`: nothing is left to do ahead of the next command |
//! | `POST /settle` | | `{}` |
//! | `POST /operations/<name>`, header `skep-call` | the operation | its answer |
//! | `POST /streams/<name>` | the operation as a [`Content`]'s head, its bytes | its answer, its bytes |
//! | `PUT /commands/<id>` | `RunCommand` | its events, as [`wire`] frames |
//! | `GET /commands/<id>?stdout=<offset>&stderr=<offset>` | | the same, from these offsets |
//! | `DELETE /commands/<id>` | | `{}`: the command was ended, or had ended |
//!
//! The last four may carry the header `skep-ground`, where one place serves several accounts: see [`Ground`].
//!
//! What the guest refuses is answered with a status of 400 and above and `skep_api::Failure` as JSON.

mod ground;
#[cfg(feature = "guest")]
pub mod guest;
mod hand_out;
mod head;
#[cfg(feature = "host")]
mod host;
mod identity;
pub mod marker;
pub mod wire;

pub use ground::Ground;
pub use hand_out::{HandOut, HandOutReport, Moment};
pub use head::Content;
#[cfg(feature = "host")]
pub use host::{Error, ExecControl, ExecStream, Guest, new_exec_id};
pub use identity::{Identity, IdentityReport, Mismatch};
