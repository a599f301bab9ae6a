//! The number of the protocol between host and guest.
//!
//! VMs outlive an update of skep, so a server meets guest agents of earlier releases, and after a downgrade also of later
//! ones. It asks such an agent once, with `GET /protocol`, and ends VMs whose requests it could not encode. VMs of the
//! server's own template are not asked: its manifest has the number.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// The protocol of this release.
///
/// Add one whenever an agent that was built before the change would refuse or misread a request of this release: a new
/// name, place or type of a field, a header that is required, another framing. A field with a default, a new operation
/// and a new route do not count: an agent ignores fields that it does not know, and its refusal of an unknown operation
/// concerns that operation only. In an operation with `deny_unknown_fields` an additional
/// field counts as well, unless it is left out of requests that do not use it.
/// `GET /protocol`, its answer and the marker never change. A test of the channel (`encoding.rs`) pins requests and fails
/// at such a change.
///
/// 1. Agents that do not know `GET /protocol`.
/// 2. `GET /protocol`. The request of an operation that has a route is a `Call`: the operation, and what the server adds.
pub const PROTOCOL: u32 = 2;

/// The protocols in which this release can encode its requests. Raise the start together with [`PROTOCOL`], unless
/// requests are still encoded for the earlier protocol too.
pub const SUPPORTED_PROTOCOLS: RangeInclusive<u32> = 2..=PROTOCOL;

/// The protocol of agents that do not know `GET /protocol`.
pub const FIRST_PROTOCOL: u32 = 1;

/// The path by which every release asks for the protocol. It never changes.
pub(crate) const PROTOCOL_PATH: &str = "/protocol";

/// The answer to `GET /protocol`. Only fields with a default may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProtocolReport {
    pub(crate) protocol: u32,
}

/// An agent speaks a protocol that this release does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its guest agent speaks protocol {protocol}, this skep speaks {}", supported_text())]
pub struct UnsupportedProtocol {
    pub protocol: u32,
}

impl UnsupportedProtocol {
    /// Checks that this release can encode requests for an agent of this protocol.
    ///
    /// # Errors
    /// The agent speaks a protocol that this release does not support.
    pub fn check(protocol: u32) -> Result<(), Self> {
        if SUPPORTED_PROTOCOLS.contains(&protocol) { Ok(()) } else { Err(Self { protocol }) }
    }
}

fn supported_text() -> String {
    let (oldest, newest) = SUPPORTED_PROTOCOLS.into_inner();
    if oldest == newest { newest.to_string() } else { format!("{oldest} to {newest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_protocol_is_refused_with_both_numbers() {
        assert!(SUPPORTED_PROTOCOLS.contains(&PROTOCOL));
        assert!(SUPPORTED_PROTOCOLS.into_iter().all(|protocol| UnsupportedProtocol::check(protocol).is_ok()));
        for other in [SUPPORTED_PROTOCOLS.start() - 1, PROTOCOL + 1] {
            let text = UnsupportedProtocol::check(other).unwrap_err().to_string();
            assert!(
                text.contains(&format!("protocol {other},")) && text.contains(&supported_text()),
                "{text}"
            );
        }
    }
}
