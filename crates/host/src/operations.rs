//! The operations of [`skep_channel::guest::Handler`] on a workspace.

use bytes::Bytes;
use futures_util::stream::unfold;
use skep_api::{Failure, exec::RunCommand};
use skep_channel::{Content, guest::Events};
use skep_workspace::{Commands, Output, Place, run_by_name, run_streamed_by_name};

/// Runs the operation of this name and returns its answer as JSON. `call` is the id of the call.
///
/// # Errors
/// What the operation refuses; a name or a request that is not valid.
pub async fn run(place: &Place, call: &str, name: &str, request: &[u8]) -> Result<Vec<u8>, Failure> {
    Ok(run_by_name(name, request, &place.for_call(call)).await?)
}

/// Runs the operation of this name with this content. Returns its answer as JSON, and the content after it.
///
/// # Errors
/// Those of [`run`].
pub async fn run_streamed(
    place: &Place,
    name: &str,
    request: Bytes,
    content: Content,
) -> Result<(Vec<u8>, Content), Failure> {
    Ok(run_streamed_by_name(name, &request, content, place).await?)
}

/// Starts a command under this id.
///
/// # Errors
/// The command is invalid, or cannot be started.
pub fn start(place: &Place, id: &str, command: &RunCommand) -> Result<Events, Failure> {
    Ok(events(place.commands().start(id, command, place)?.attach(0, 0)))
}

/// Reads the output of a command from these offsets on.
///
/// # Errors
/// There is no command with this id.
pub fn attach(
    commands: &Commands,
    id: &str,
    stdout_offset: u64,
    stderr_offset: u64,
) -> Result<Events, Failure> {
    Ok(events(commands.find(id)?.attach(stdout_offset, stderr_offset)))
}

/// Kills a command.
///
/// # Errors
/// There is no command with this id.
pub fn cancel(commands: &Commands, id: &str) -> Result<(), Failure> {
    commands.find(id)?.cancel();
    Ok(())
}

fn events(output: Output) -> Events {
    Box::pin(unfold(output, async |mut output| {
        let event = output.next().await?;
        Some((event, output))
    }))
}
