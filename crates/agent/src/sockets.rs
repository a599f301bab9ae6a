//! Ends the TCP connections that a copy inherits from its original. Otherwise the programs of the copy would wait for answers
//! that never arrive: the network delivers packets for that address to the original, or drops them once the original has ended.
//!
//! By `SOCK_DESTROY` of `NETLINK_SOCK_DIAG` (linux/sock_diag.h, linux/inet_diag.h), which needs the modules `inet_diag` and
//! `tcp_diag`.

use std::{io, net::Ipv4Addr, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_sockid`.
const ID_BYTES: usize = 48;
/// Where `struct inet_diag_msg` has the id: behind family, state, timer and retransmissions.
const ID_OFFSET: usize = 4;
/// Where an id has the local address: behind the two ports.
const ADDRESS_OFFSET: usize = 4;
/// States of sockets, a bit each, by the numbers of linux/tcp_states.h.
pub(crate) const ALL_STATES: u32 = u32::MAX;
/// The same without sockets that wait for connections.
pub(crate) const ALL_BUT_LISTENERS: u32 = !(1 << 10);
/// How long the kernel may take for each answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The kernel fills a message of a dump up to this size.
const BUFFER_BYTES: usize = 32 << 10;
/// More sockets than this are not destroyed: a guest with this many has hardly any memory left.
const MAX_SOCKETS: usize = 1 << 16;

type SocketId = [u8; ID_BYTES];

/// Destroys all TCP sockets with this local address and one of these states, in IPv6 sockets too. Returns how many.
///
/// # Errors
/// The kernel refuses the list, or to destroy one of them. All others are destroyed.
pub(crate) fn destroy_tcp(local: Ipv4Addr, states: u32) -> io::Result<usize> {
    let kernel =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    set_socket_timeout(&kernel, Timeout::Recv, Some(ANSWER_LIMIT))?;
    let (mut destroyed, mut refused) = (0, None);
    for (family, address) in
        [(libc::AF_INET, padded(&local.octets())), (libc::AF_INET6, local.to_ipv6_mapped().octets())]
    {
        for id in sockets(&kernel, family as u8, states, address)? {
            match destroy(&kernel, family as u8, &id) {
                Ok(()) => destroyed += 1,
                // It ended meanwhile.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) => refused = Some(error),
            }
        }
    }
    refused.map_or(Ok(destroyed), Err)
}

/// An address in the field for both families, whose rest is zero.
fn padded(octets: &[u8; 4]) -> [u8; 16] {
    std::array::from_fn(|at| octets.get(at).copied().unwrap_or(0))
}

/// The ids of all TCP sockets with this local address and one of these states.
fn sockets(kernel: &OwnedFd, family: u8, states: u32, address: [u8; 16]) -> io::Result<Vec<SocketId>> {
    let dump = request(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family, states, &[0; ID_BYTES]);
    send(kernel, &dump, SendFlags::empty())?;
    let (mut ids, mut buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
    loop {
        for message in messages(receive(kernel, &mut buffer)?) {
            match message? {
                Message::Done => return Ok(ids),
                Message::Socket(id) if ids.len() < MAX_SOCKETS && id[ADDRESS_OFFSET..][..16] == address => {
                    ids.push(id);
                }
                Message::Socket(_) => {}
            }
        }
    }
}

fn destroy(kernel: &OwnedFd, family: u8, id: &SocketId) -> io::Result<()> {
    send(
        kernel,
        &request(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, family, ALL_STATES, id),
        SendFlags::empty(),
    )?;
    let mut buffer = vec![0; BUFFER_BYTES];
    // The acknowledgement is an error with the number 0.
    messages(receive(kernel, &mut buffer)?).try_for_each(|message| message.map(drop))
}

fn receive<'a>(kernel: &OwnedFd, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let (length, whole) = retry_on_intr(|| recv(kernel, &mut *buffer, RecvFlags::TRUNC))?;
    if whole > length {
        return Err(malformed("a message is longer than the buffer"));
    }
    Ok(&buffer[..length])
}

/// A `struct nlmsghdr` and a `struct inet_diag_req_v2`.
fn request(kind: u16, flags: u16, family: u8, states: u32, id: &SocketId) -> Vec<u8> {
    let (extensions, padding) = (0, 0);
    let body =
        [&[family, libc::IPPROTO_TCP as u8, extensions, padding][..], &states.to_ne_bytes(), id].concat();
    let length = (HEADER_BYTES + body.len()) as u32;
    let (sequence, port) = (0_u32.to_ne_bytes(), 0_u32.to_ne_bytes());
    let header =
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &sequence, &port].concat();
    [header, body].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Message {
    Socket(SocketId),
    /// The end of a dump, or an acknowledgement.
    Done,
}

/// The messages of a datagram, up to the first one that is malformed or reports an error.
fn messages(datagram: &[u8]) -> impl Iterator<Item = io::Result<Message>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = next_message(&mut rest);
        if message.is_err() {
            rest = &[];
        }
        Some(message)
    })
}

fn next_message(rest: &mut &[u8]) -> io::Result<Message> {
    let (length, kind) = match **rest {
        [a, b, c, d, e, f, ..] => (u32::from_ne_bytes([a, b, c, d]) as usize, u16::from_ne_bytes([e, f])),
        _ => return Err(malformed("a message has no header")),
    };
    let body = rest.get(HEADER_BYTES..length).ok_or_else(|| malformed("a message is cut short"))?;
    // Messages begin at multiples of four bytes.
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    match kind {
        NLMSG_DONE => Ok(Message::Done),
        NLMSG_ERROR => match body.first_chunk().map(|number| i32::from_ne_bytes(*number)) {
            Some(0) => Ok(Message::Done),
            Some(number) => Err(io::Error::from_raw_os_error(number.saturating_neg())),
            None => Err(malformed("an error has no number")),
        },
        SOCK_DIAG_BY_FAMILY => {
            let id = body.get(ID_OFFSET..).and_then(|rest| rest.first_chunk());
            Ok(Message::Socket(*id.ok_or_else(|| malformed("a socket has no id"))?))
        }
        _ => Err(malformed("a message has an unknown type")),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut all = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat();
        all.resize(all.len().next_multiple_of(4), 0);
        all
    }

    fn socket(number: u8) -> Vec<u8> {
        message(SOCK_DIAG_BY_FAMILY, &[[0; ID_OFFSET].as_slice(), &[number; ID_BYTES], &[0; 20]].concat())
    }

    fn read(datagram: &[u8]) -> Vec<Result<Message, io::ErrorKind>> {
        messages(datagram).map(|message| message.map_err(|error| error.kind())).collect()
    }

    #[test]
    fn a_request_is_that_of_the_kernel() {
        let bytes =
            request(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, libc::AF_INET as u8, ALL_STATES, &[7; ID_BYTES]);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..8], [72, 0, 0, 0, 21, 0, 5, 0]);
        assert_eq!(bytes[16..24], [2, 6, 0, 0, 255, 255, 255, 255]);
        assert_eq!(bytes[24..], [7; ID_BYTES]);
    }

    #[test]
    fn a_dump_is_read_up_to_its_end() {
        let dump = [socket(1), socket(2), message(NLMSG_DONE, &[0; 4])].concat();
        let wanted =
            vec![Ok(Message::Socket([1; ID_BYTES])), Ok(Message::Socket([2; ID_BYTES])), Ok(Message::Done)];
        assert_eq!(read(&dump), wanted);
        assert_eq!(read(&message(NLMSG_ERROR, &0_i32.to_ne_bytes())), [Ok(Message::Done)]);
        let refused = message(NLMSG_ERROR, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(read(&refused), [Err(io::ErrorKind::PermissionDenied)]);
    }

    #[test]
    fn a_malformed_message_ends_the_reading() {
        let invalid = [Err(io::ErrorKind::InvalidData)];
        let with_length = |length: u32| [&length.to_ne_bytes()[..], &socket(1)[4..]].concat();
        for datagram in [
            vec![0; 5],
            socket(1)[..HEADER_BYTES].to_vec(),
            socket(1)[..40].to_vec(),
            with_length(0),
            with_length(15),
            with_length(u32::MAX),
            message(SOCK_DIAG_BY_FAMILY, &[0; ID_BYTES]),
            message(NLMSG_ERROR, &[0; 3]),
            message(99, &[]),
        ] {
            assert_eq!(read(&[datagram.clone(), socket(1)].concat()).last(), read(&datagram).last());
            assert_eq!(read(&datagram), invalid, "{datagram:?}");
        }
    }

    #[test]
    fn every_cut_of_a_dump_is_read_up_to_the_cut() {
        let (one, dump) = (socket(1).len(), [socket(1), socket(2), message(NLMSG_DONE, &[0; 4])].concat());
        for length in 0..dump.len() {
            let found = read(&dump[..length]);
            assert_eq!(found.iter().filter(|message| message.is_ok()).count(), length / one, "{length}");
            assert_eq!(
                found.iter().filter(|message| message.is_err()).count(),
                (length % one).min(1),
                "{length}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_reading(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            proptest::prop_assert!(read(&bytes).len() <= bytes.len() / HEADER_BYTES + 1);
        }
    }

    /// Needs root and a kernel that can destroy sockets; elsewhere the kernel refuses, and nothing else is checked.
    #[test]
    fn connections_of_the_address_end_and_others_stay() {
        let [old, other] = [Ipv4Addr::new(127, 9, 8, 7), Ipv4Addr::new(127, 9, 8, 6)];
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = |to: Ipv4Addr| TcpStream::connect((to, port)).unwrap();
        let (_first, accepted) = (connect(old), listener.accept().unwrap().0);
        let (_second, kept) = (connect(other), listener.accept().unwrap().0);
        match destroy_tcp(old, ALL_STATES) {
            Ok(destroyed) => {
                assert_eq!(destroyed, 1);
                let ended = accepted.take_error().unwrap().map(|error| error.kind());
                assert_eq!(ended, Some(io::ErrorKind::ConnectionAborted));
                assert!(kept.take_error().unwrap().is_none());
                // The listener has no address of its own.
                drop((connect(other), listener.accept().unwrap()));
            }
            Err(error) => eprintln!("this kernel does not destroy sockets: {error}"),
        }
    }
}
