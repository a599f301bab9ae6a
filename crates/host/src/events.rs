//! The events of a command as a stream of a channel.

use futures_util::stream::unfold;
use skep_channel::guest::Events;
use skep_workspace::Output;

/// The events of this output. The command runs on if the stream is dropped.
pub fn events(output: Output) -> Events {
    Box::pin(unfold(output, async |mut output| {
        let event = output.next().await?;
        Some((event, output))
    }))
}
