//! The messages between keeper and egress process, in packets like those between keeper and server.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use skep_api::{
    AccountId,
    egress::{EgressPolicy, EgressReport},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Mutex,
    time::timeout,
};

use crate::{Envelope, Error, socket::Socket};

/// Version of these messages, and of the descriptors and signals of the process. A keeper adopts a process of its own
/// version only. Presets of policies are part of it, because an adopted process has the hosts of its release, and so is the file of
/// names.
pub const EGRESS_PROTOCOL: u32 = 5;

/// How long the egress process may take for an answer, which needs no input or output. A stopped process is treated as
/// one that has ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A request of the keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressRequest {
    /// Apply this policy to the VM at this address. Connections that it forbids end.
    Set { vm: Ipv4Addr, egress: VmEgress },
    /// The VM at this address has ended: end its connections and forget it.
    Forget { vm: Ipv4Addr },
    /// Ask these name servers from now on.
    NameServers { servers: Vec<SocketAddr> },
    /// Serve the VMs. The policies of all VMs were set on this connection: VMs without one are forgotten.
    Serve,
    /// Report what the VM at this address tried.
    Report { vm: Ipv4Addr },
    /// Report the sums over all VMs.
    Totals,
}

/// What the guest of a VM may connect to outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmEgress {
    pub policy: EgressPolicy,
    /// The account of the VM, for which the names that the VM uses are counted. `None` if an earlier release has recorded the policy.
    pub account: Option<AccountId>,
}

impl VmEgress {
    pub fn new(account: AccountId, policy: EgressPolicy) -> Self {
        Self { policy, account: Some(account) }
    }
}

/// An answer of the egress process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressAnswer {
    Done,
    Report(EgressReport),
    Totals(EgressTotals),
    /// The answer has more bytes than a packet.
    TooLarge,
}

/// The sums over all VMs since the egress process was started, with VMs that ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressTotals {
    /// The connections that are open.
    pub open_connections: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// The tries that were refused, by reason. A reason without tries may be absent.
    pub refused: BTreeMap<EgressRefusal, u64>,
    /// The names that VMs use, of [`crate::MAX_EGRESS_NAMES`].
    pub names: u64,
}

/// The kind of reason why a connection or a look-up was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressRefusal {
    /// The policy of the VM does not allow the target.
    Policy,
    /// The operator forbids the target.
    Operator,
    /// The address is not public.
    NotPublic,
    /// The address belongs to the server's machine.
    OwnAddress,
    /// The first bytes name a host that the policy does not allow.
    OtherHost,
    /// The first bytes name no host that can be read.
    UnreadableHost,
    /// The address is a placeholder address of no name that the VM has looked up.
    UnknownName,
    /// The VM, or all VMs together, reached a limit.
    Limit,
    /// The process could not write its file of names.
    Internal,
}

impl EgressRefusal {
    pub const ALL: [Self; 9] = [
        Self::Policy,
        Self::Operator,
        Self::NotPublic,
        Self::OwnAddress,
        Self::OtherHost,
        Self::UnreadableHost,
        Self::UnknownName,
        Self::Limit,
        Self::Internal,
    ];

    /// The word for it in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Operator => "operator",
            Self::NotPublic => "not_public",
            Self::OwnAddress => "own_address",
            Self::OtherHost => "other_host",
            Self::UnreadableHost => "unreadable_host",
            Self::UnknownName => "unknown_name",
            Self::Limit => "limit",
            Self::Internal => "internal",
        }
    }
}

/// The socket at which the egress process awaits its keeper, and the next one.
#[derive(Debug)]
pub struct EgressControl(AsyncFd<OwnedFd>);

/// The keeper's end. Requests are answered in their order.
#[derive(Debug)]
pub struct EgressKeeperEnd {
    socket: Socket,
    /// Number of the last request.
    last: Mutex<u64>,
}

/// The end of the egress process.
#[derive(Debug)]
pub struct EgressProcessEnd(Socket);

impl EgressControl {
    /// Must run in a Tokio runtime.
    ///
    /// # Errors
    /// This is not a socket.
    pub fn new(listener: OwnedFd) -> Result<Self, Error> {
        crate::socket::register(listener).map(Self)
    }

    /// Waits for a keeper.
    ///
    /// # Errors
    /// The connection cannot be accepted.
    pub async fn accept(&self) -> Result<EgressProcessEnd, Error> {
        let accepted = self.0.async_io(Interest::READABLE, |listener| skep_packet::accept(listener)).await;
        EgressProcessEnd::new(accepted.map_err(Error::Io)?)
    }
}

impl EgressKeeperEnd {
    /// Must run in a Tokio runtime.
    ///
    /// # Errors
    /// This is not a socket.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        Ok(Self { socket: Socket::new(descriptor)?, last: Mutex::new(0) })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// The process is gone or does not answer in time.
    pub async fn request(&self, request: EgressRequest) -> Result<EgressAnswer, Error> {
        let mut last = self.last.lock().await;
        *last += 1;
        let id = *last;
        let answered = timeout(ANSWER_TIMEOUT, async {
            self.socket.send(&Envelope { id, body: request }, &[]).await?;
            loop {
                let received = self.socket.receive::<Envelope<EgressAnswer>>().await?;
                let (envelope, _) = received.ok_or(Error::Closed)?;
                // An earlier answer belongs to a request whose future was dropped.
                if envelope.id == id {
                    return Ok(envelope.body);
                }
            }
        });
        answered.await.unwrap_or(Err(Error::Closed))
    }
}

impl EgressProcessEnd {
    /// Must run in a Tokio runtime.
    ///
    /// # Errors
    /// This is not a socket.
    pub fn new(descriptor: OwnedFd) -> Result<Self, Error> {
        Ok(Self(Socket::new(descriptor)?))
    }

    /// The next request. `None` if the keeper is gone.
    ///
    /// # Errors
    /// The packet is not a request.
    pub async fn receive(&self) -> Result<Option<Envelope<EgressRequest>>, Error> {
        Ok(self.0.receive().await?.map(|(envelope, _)| envelope))
    }

    /// Answers a request. An answer that is too large for a packet is replaced, so that the keeper does not wait for it in
    /// vain and take the process for a broken one.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn answer(&self, id: u64, answer: EgressAnswer) -> Result<(), Error> {
        match self.0.send(&Envelope { id, body: answer }, &[]).await {
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                self.0.send(&Envelope { id, body: EgressAnswer::TooLarge }, &[]).await
            }
            sent => sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use skep_api::egress::{EgressPreset, EgressTry, EgressVerdict};

    use super::*;

    /// Otherwise a process that a keeper of a newer release adopts would go on with the hosts of the older release.
    #[test]
    fn other_hosts_of_presets_are_another_protocol() {
        let line = |preset: &EgressPreset| {
            format!("{} {}\n", preset.name, preset.hosts().collect::<Vec<_>>().join(" "))
        };
        let presets: String = EgressPreset::ALL.iter().map(line).collect();
        // FNV-1a, whose results stay the same in all releases of Rust.
        let digest = presets.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        assert_eq!(
            (EGRESS_PROTOCOL, digest),
            (5, 0x4da5_6825_00fa_adb6),
            "raise EGRESS_PROTOCOL when the presets change, and note both here:\n{presets}"
        );
    }

    #[tokio::test]
    async fn an_answer_over_the_limit_of_a_packet_does_not_end_the_connection() {
        let (ours, theirs) = crate::pair().unwrap();
        let (keeper, process) = (EgressKeeperEnd::new(ours).unwrap(), EgressProcessEnd::new(theirs).unwrap());
        let answer = async |answer| {
            let asked = async { process.receive().await.unwrap().unwrap() };
            let serve = async { process.answer(asked.await.id, answer).await.unwrap() };
            tokio::join!(keeper.request(EgressRequest::Totals), serve).0.unwrap()
        };
        let tries = vec![
            EgressTry {
                at: Timestamp::UNIX_EPOCH,
                name: Some("n".repeat(250)),
                address: None,
                port: None,
                verdict: EgressVerdict::Refused,
                reason: None,
                git_relay: false,
            };
            1000
        ];
        let large = EgressAnswer::Report(EgressReport { tries, ..EgressReport::default() });
        assert!(matches!(answer(large).await, EgressAnswer::TooLarge));
        assert!(matches!(answer(EgressAnswer::Done).await, EgressAnswer::Done));
    }

    #[tokio::test]
    async fn an_answer_to_a_dropped_request_is_not_taken_for_another() {
        let (ours, theirs) = crate::pair().unwrap();
        let (keeper, process) = (EgressKeeperEnd::new(ours).unwrap(), EgressProcessEnd::new(theirs).unwrap());
        let vm = Ipv4Addr::new(10, 77, 0, 2);
        let mut dropped = Box::pin(keeper.request(EgressRequest::Serve));
        assert!(futures_util::poll!(&mut dropped).is_pending());
        drop(dropped);
        let serve = async {
            while let Some(Envelope { id, body }) = process.receive().await.unwrap() {
                let answer = match body {
                    EgressRequest::Report { .. } => EgressAnswer::Report(EgressReport::default()),
                    _ => EgressAnswer::Done,
                };
                process.answer(id, answer).await.unwrap();
            }
        };
        let ask = async {
            let answer = keeper.request(EgressRequest::Report { vm }).await.unwrap();
            assert!(matches!(answer, EgressAnswer::Report(_)), "{answer:?}");
            drop(keeper);
        };
        tokio::join!(serve, ask);
    }
}
