//! Streams events of the store to their subscribers.
//!
//! ```text
//! store ── a signal for each commit ──► Tail: reads new events once, for all readers ──► Reader that is up to date
//!   └───────────────────────────────── pages ──────────────────────────────────────► Reader that is behind
//! ```
//! A reader holds a cursor and a few events at most: it reads more only when the client has taken those.

mod filter;
mod frame;
mod reader;
mod tail;

pub(crate) use self::{
    filter::{EventFilter, parse_kinds},
    frame::{current, gap, keep_alive},
    reader::{Cursor, Reader},
    tail::Tail,
};
