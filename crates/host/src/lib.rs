//! What the guest agent in a VM and the helpers on the server's machine share: both serve a workspace over a channel.

mod events;
mod reaper;

pub use events::events;
pub use reaper::reap_orphans;
