//! A VM becomes somebody's: the time, fresh randomness, that person's variables.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use skep_channel::{Guest, HandOut, HandOutReport, Moment};

use crate::Error;

/// A time that took longer on its way than this is too old, and told anew.
pub(crate) const OLD: Duration = Duration::from_millis(40);
/// On a machine where even the last one is late, a clock that is a little slow is what can be had.
const TRIES: usize = 5;

/// Hands a VM out. Its clock is right when this returns, to within what the last order took.
pub(crate) async fn hand_out(guest: &Guest, env: &BTreeMap<String, String>) -> Result<HandOutReport, Error> {
    let mut step_ms = 0.0;
    let mut tries = 0;
    loop {
        let begun = Instant::now();
        let report = guest.hand_out(&HandOut { moment: Moment::now(), env: env.clone() }).await?;
        report.proves()?;
        step_ms += report.clock_step_ms;
        tries += 1;
        if begun.elapsed() < OLD || tries == TRIES {
            return Ok(HandOutReport { clock_step_ms: step_ms, ..report });
        }
    }
}
