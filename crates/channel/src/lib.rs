//! Operations over HTTP/2 on a byte stream between the server and a guest agent, and the identity of a VM after a
//! restore.
//!
//! The stream outlives both ends, and either end may lose the other in the middle of a frame. Each connection of the
//! host therefore begins with a [`marker`](mod@marker). The guest looks for markers at any time and echoes them; a new
//! HTTP/2 connection follows.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /protocol` | | `{"protocol": N}`, see [`PROTOCOL`] |
//! | `POST /identity` | [`Identity`] | [`IdentityReport`] |
//! | `POST /hand-out` | [`HandOut`] | [`HandOutReport`] |
//! | `POST /clock` | [`TimeAndSeed`] | [`HandOutReport`] |
//! | `POST /freeze` | [`FreezeRequest`] | [`FreezeReport`] once no program runs |
//! | `POST /thaw` | [`ThawRequest`] | `{}` |
//! | `POST /rest` | | `{}` once the control groups of ended commands are removed and other deferred work had its time |
//! | `POST /settle` | | `{}` |
//! | `GET /usage` | | [`GuestUsage`] |
//! | `POST /operations/<name>`, header `skep-call` | the operation | its answer |
//! | `POST /streams/<name>` | the operation as a [`Content`]'s head, then its bytes | its answer, then its bytes |
//! | `PUT /commands/<id>` | `RunCommand` | its events, as [`wire`] frames |
//! | `GET /commands/<id>?stdout=<offset>&stderr=<offset>` | | the same, from these offsets |
//! | `DELETE /commands/<id>` | | `{}`: the command was killed, or had ended |
//!
//! The last four may carry the header `skep-ground` where one server process handles several accounts: see [`AccountRoots`].
//!
//! Errors are answered with a status of 400 or above and `skep_api::Failure` as JSON.

mod account_roots;
mod freeze;
#[cfg(feature = "guest")]
pub mod guest;
mod guest_usage;
mod hand_out;
mod head;
#[cfg(feature = "host")]
mod host;
mod identity;
pub mod marker;
mod protocol;
pub mod wire;

pub use account_roots::AccountRoots;
pub use freeze::{FreezeReport, FreezeRequest, ThawRequest};
pub use guest_usage::GuestUsage;
pub use hand_out::{HandOut, HandOutReport, TimeAndSeed};
pub use head::Content;
#[cfg(feature = "host")]
pub use host::{AnswerMemory, Error, ExecControl, ExecStream, Guest, new_exec_id};
pub use identity::{Identity, IdentityReport, Mismatch};
pub use protocol::{FIRST_PROTOCOL, PROTOCOL, SUPPORTED_PROTOCOLS, UnsupportedProtocol};
