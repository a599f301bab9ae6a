//! Commands run by `/bin/sh -c`, each in its own control group.
//!
//! ```text
//! Commands::start ── spawn ──► Running ◄── attach ── Output (a reader; any number of them)
//!                                 ▲
//!              record (one task per pipe) and supervise (awaits the shell)
//! ```
//! The output is kept by the [`Running`], not by the connection of the caller: a reader may disconnect and come back.

mod cgroup;
mod commands;
mod input;
mod output;
mod output_buffer;
mod process_set;
mod running;
pub(crate) mod shell;
mod signals;
mod spawn;
mod supervise;

pub use commands::Commands;
pub use output::Output;
pub use process_set::kill_descendants;
pub use running::Running;

use skep_api::{
    exec::{ExecOutcome, RunCommand},
    exec_stream::{SignalCommand, SignalSent},
};

use crate::{Error, Place, Run};

impl Run for RunCommand {
    async fn run(self, place: &Place) -> Result<ExecOutcome, Error> {
        let id = match place.call() {
            Some(id) => id.to_owned(),
            None => place.commands().unused_id(),
        };
        Ok(place.commands().start(&id, &self, place)?.outcome().await)
    }
}

impl Run for SignalCommand {
    async fn run(self, place: &Place) -> Result<SignalSent, Error> {
        place.commands().find(&self.exec_id)?.signal(signals::signal_of(self.signal)).await;
        Ok(SignalSent {})
    }
}
