//! Events on their way to those who follow them.
//!
//! ```text
//! store ── a signal for each commit ──► Tail: reads what is new, once for all ──► Reader of those who are up to date
//!   └───────────────────── pages, for whoever is behind ────────────────────────► Reader
//! ```
//! A reader holds its place and a few events at most: it reads on when its caller has taken what it was given.

mod frame;
mod reader;
mod tail;
mod wanted;

pub(crate) use self::{
    frame::{current, gap, place},
    reader::{Place, Reader},
    tail::Tail,
    wanted::{Wanted, named, scope_of},
};
