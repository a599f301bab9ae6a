//! Reads the first packet without consuming it.

use std::os::fd::BorrowedFd;

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    net::{RecvFlags, recv},
};

use crate::{Error, ServerSetup};

/// Waits for the first packet and reads it without consuming it, so that [`crate::ServerEnd::connect`] receives it
/// again. The server needs the settings in it to confine itself before it starts a runtime, because Landlock does not
/// confine threads that already exist.
///
/// # Errors
/// The keeper is gone, or this is not a keeper's socket.
pub fn peek_setup(descriptor: BorrowedFd<'_>) -> Result<ServerSetup, Error> {
    retry_on_intr(|| poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None))
        .map_err(|error| Error::Io(error.into()))?;
    let mut bytes = vec![0; skep_packet::MAX_BYTES];
    let (length, _) = retry_on_intr(|| recv(descriptor, &mut bytes[..], RecvFlags::PEEK))
        .map_err(|error| Error::Io(error.into()))?;
    if length == 0 {
        return Err(Error::Closed);
    }
    serde_json::from_slice(&bytes[..length]).map_err(|error| Error::Protocol(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{KeeperEnd, ServerEnd, SwarmAvailability};

    #[tokio::test]
    async fn a_peeked_packet_is_received_again() {
        let (keeper, server) = crate::pair().unwrap();
        let swarm = SwarmAvailability::Unable { reason: "a test".to_owned() };
        let setup =
            ServerSetup { settings: serde_json::json!({"a": 1}), admin_key: None, swarm, succeeds: false };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let keeper = KeeperEnd::new(keeper).unwrap();
        keeper.send_setup(&setup, &[listener.into()]).await.unwrap();
        assert_eq!(peek_setup(server.as_fd()).unwrap().settings["a"], 1);
        assert_eq!(peek_setup(server.as_fd()).unwrap().settings["a"], 1);
        let (_, received, listeners) = ServerEnd::connect(server).await.unwrap();
        assert_eq!((received.settings["a"].as_i64(), listeners.len()), (Some(1), 1));
    }

    #[test]
    fn a_closed_keeper_end_is_an_error() {
        let (keeper, server) = crate::pair().unwrap();
        drop(keeper);
        assert!(matches!(peek_setup(server.as_fd()), Err(Error::Closed)));
    }
}
