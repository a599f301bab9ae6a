//! Delivers events to the webhook endpoints of accounts.
//!
//! ```text
//! events ── a cursor of each webhook, in one transaction ──► deliveries ── those that are due ──► Sender ──► endpoint
//!    ▲                                                         ▲   │                                │
//!    └── wait here while too many deliveries of a webhook do ──┘   └──── attempt, state, next time ◄┘
//! ```
//! All state is in the store: after a restart, due deliveries continue, and attempts that were in progress are
//! repeated.

mod attempt;
mod dispatch;
mod sender;

pub(crate) use self::dispatch::Dispatcher;
