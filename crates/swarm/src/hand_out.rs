//! The hand-out of a VM to a caller: sets the clock, reseeds the random number generator and sets environment
//! variables. After a pause, only clock and random numbers are renewed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use skep_api::{
    ErrorCode,
    exec::{RunCommand, Stdin},
};
use skep_channel::{Guest, HandOut, HandOutReport, TimeAndSeed};

use crate::Error;

/// If the message with the time took longer than this, the time is too old and sent again.
pub(crate) const MAX_TIME_DELAY: Duration = Duration::from_millis(40);
/// After this many attempts a slightly slow clock is accepted.
const MAX_ATTEMPTS: usize = 5;
/// Time limit of the command that sets the clock.
const SET_CLOCK_TIMEOUT_MS: u64 = 10_000;

/// Hands a VM out. The error of its clock is at most the duration of the last message.
pub(crate) async fn hand_out(guest: &Guest, env: &BTreeMap<String, String>) -> Result<HandOutReport, Error> {
    send_time(guest, Some(env)).await
}

/// Sets the clock of a VM that stood still. Its error is at most the duration of the last message.
pub(crate) async fn set_clock(guest: &Guest) -> Result<(), Error> {
    match send_time(guest, None).await {
        Err(Error::Guest(skep_channel::Error::Refused(failure)))
            if failure.code == ErrorCode::UnknownRoute =>
        {
            set_clock_by_command(guest).await
        }
        outcome => outcome.map(drop),
    }
}

/// Sends the time until a message took so little time that the clock is right.
async fn send_time(guest: &Guest, env: Option<&BTreeMap<String, String>>) -> Result<HandOutReport, Error> {
    let mut step_ms = 0.0;
    let mut attempts = 0;
    loop {
        let begun = Instant::now();
        let moment = TimeAndSeed::now();
        let report = match env {
            Some(env) => guest.hand_out(&HandOut { moment, env: env.clone() }).await?,
            None => guest.set_clock(&moment).await?,
        };
        report.verify()?;
        step_ms += report.clock_step_ms;
        attempts += 1;
        if begun.elapsed() < MAX_TIME_DELAY || attempts == MAX_ATTEMPTS {
            return Ok(HandOutReport { clock_step_ms: step_ms, ..report });
        }
    }
}

/// Sets the clock of a guest whose agent is of an earlier release, which cannot do it.
async fn set_clock_by_command(guest: &Guest) -> Result<(), Error> {
    let now = Timestamp::now();
    let command = RunCommand {
        command: format!("date -s @{}.{:03}", now.as_second(), now.subsec_millisecond()),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: SET_CLOCK_TIMEOUT_MS,
    };
    let answer = guest.call(&command).await?;
    if answer.exit_code != Some(0) {
        tracing::warn!(?answer, "the clock of a guest that stood still was not set");
    }
    Ok(())
}
