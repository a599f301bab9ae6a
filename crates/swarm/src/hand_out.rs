//! The hand-out of a VM to a caller: sets the clock, reseeds the random number generator and sets environment
//! variables.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use skep_channel::{Guest, HandOut, HandOutReport, TimeAndSeed};

use crate::Error;

/// If the message with the time took longer than this, the time is too old and sent again.
pub(crate) const MAX_TIME_DELAY: Duration = Duration::from_millis(40);
/// After this many attempts a slightly slow clock is accepted.
const MAX_ATTEMPTS: usize = 5;

/// Hands a VM out. The error of its clock is at most the duration of the last message.
pub(crate) async fn hand_out(guest: &Guest, env: &BTreeMap<String, String>) -> Result<HandOutReport, Error> {
    let mut step_ms = 0.0;
    let mut attempts = 0;
    loop {
        let begun = Instant::now();
        let report = guest.hand_out(&HandOut { moment: TimeAndSeed::now(), env: env.clone() }).await?;
        report.verify()?;
        step_ms += report.clock_step_ms;
        attempts += 1;
        if begun.elapsed() < MAX_TIME_DELAY || attempts == MAX_ATTEMPTS {
            return Ok(HandOutReport { clock_step_ms: step_ms, ..report });
        }
    }
}
