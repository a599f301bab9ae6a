//! Typed HTTP client of the API.

#![warn(missing_docs)]

mod answer;
mod client;
mod error;
mod events;
mod exec;
mod exec_duplex;
mod remote_place;
mod session;
mod swarm;
mod templates;
mod ticket_log;
mod tickets;
mod watch;

pub use answer::Answered;
pub use client::Client;
pub use error::{ConnectionFault, Error, Result};
pub use events::{EventQuery, EventStream, ReceivedEvent};
pub use exec::{ExecEvent, ExecEvents};
pub use exec_duplex::{DuplexEvent, DuplexInput, DuplexOutput};
pub use remote_place::{FileStream, RemotePlace};
pub use ticket_log::{LogEvent, LogEvents, TicketLogQuery};
pub use tickets::{Deletion, TicketQuery};
pub use watch::{Changes, WatchedChange};
