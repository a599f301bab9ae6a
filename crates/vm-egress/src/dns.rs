//! The DNS forwarder: answers names that a VM's policy allows with their placeholder addresses.
//!
//! It asks nobody: a name is looked up when the VM connects. Other types of records have an empty answer, so that no
//! program connects by IPv6, or encrypts the name that it connects to.

mod message;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_resolver::proto::{
    op::{Query, ResponseCode},
    rr::{DNSClass, RecordType},
};
use skep_keeper_protocol::EgressRefusal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};

use crate::{
    names::Names,
    proxy::{accept, source_of},
    vms::{Outcome, Target, Vm, Vms},
};

/// Limit of a query, in bytes. It has a single question.
const MAX_QUERY_BYTES: usize = 1232;
/// Connections of all VMs to the forwarder.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// How long a connection may be idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers queries over UDP.
pub(crate) async fn serve_udp(socket: UdpSocket, vms: Arc<Vms>, names: Arc<Names>) {
    let mut query = [0; MAX_QUERY_BYTES];
    loop {
        let Ok((length, source)) = socket.recv_from(&mut query).await else { continue };
        let Some(vm) = vm_of(&vms, source) else { continue };
        if let Some(answer) = answer(&vm, &names, &query[..length]) {
            // A full send buffer loses the answer, and the VM asks again.
            let _ = socket.try_send_to(&answer, source);
        }
    }
}

/// Answers queries over TCP. `all` limits the connections of all VMs.
pub(crate) async fn serve_tcp(listener: TcpListener, vms: Arc<Vms>, names: Arc<Names>, all: Arc<Semaphore>) {
    // They end with this task, after which another process may use the file of names.
    let mut streams = JoinSet::new();
    loop {
        let (stream, source) = tokio::select! {
            accepted = accept(&listener) => accepted,
            Some(_) = streams.join_next() => continue,
        };
        let Some(vm) = vm_of(&vms, source) else { continue };
        let Some(permits) = permits(&vm, &all) else {
            vm.count_refusal(EgressRefusal::Limit);
            continue;
        };
        let names = Arc::clone(&names);
        streams.spawn(async move {
            let _permits = permits;
            // Ends by an error at the latest: of the stream or of the time limit.
            let _ = serve_stream(stream, &vm, &names).await;
        });
    }
}

/// The permits of a connection to the forwarder. `None` at a limit.
fn permits(vm: &Vm, all: &Arc<Semaphore>) -> Option<[OwnedSemaphorePermit; 3]> {
    vm.connection_rate.check().ok()?;
    let permit = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_owned().ok();
    Some([permit(&vm.connections)?, permit(&vm.dns_connections)?, permit(all)?])
}

async fn serve_stream(mut stream: TcpStream, vm: &Vm, names: &Names) -> std::io::Result<()> {
    let mut buffer = [0; MAX_QUERY_BYTES];
    loop {
        let length = usize::from(timeout(IDLE_TIMEOUT, stream.read_u16()).await??);
        let Some(query) = buffer.get_mut(..length) else { return Ok(()) };
        timeout(IDLE_TIMEOUT, stream.read_exact(query)).await??;
        let Some(answer) = answer(vm, names, query) else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        timeout(IDLE_TIMEOUT, stream.write_all(&framed)).await??;
    }
}

fn vm_of(vms: &Vms, source: SocketAddr) -> Option<Arc<Vm>> {
    vms.find(source_of(source)?)
}

/// The answer to a query. `None` if it gets none: it is no query, or the VM asks too often.
fn answer(vm: &Vm, names: &Names, query: &[u8]) -> Option<Vec<u8>> {
    if vm.query_rate.check().is_err() {
        vm.count_refusal(EgressRefusal::Limit);
        return None;
    }
    message::answer(query, |name, question| address(vm, names, name, question))
}

/// The address for a question. `None` for a type of record that names do not have here.
fn address(vm: &Vm, names: &Names, name: &str, question: &Query) -> Result<Option<Ipv4Addr>, ResponseCode> {
    let refuse = |refusal: EgressRefusal, reason: String| {
        let target = Target { name: Some(name.into()), address: None, port: None };
        vm.record(&target, Outcome::Refused(refusal, reason));
        ResponseCode::Refused
    };
    let policy = vm.policy();
    if !policy.permits_lookup(name) {
        return Err(refuse(EgressRefusal::Policy, "the policy does not allow the name".to_owned()));
    }
    if question.query_class() != DNSClass::IN || question.query_type() != RecordType::A {
        return Ok(None);
    }
    let address = vm.use_name(names, name).map_err(|error| refuse(error.refusal(), error.to_string()))?;
    Ok(Some(address))
}

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::{op::Message, rr::Name};
    use proptest::prelude::*;
    use skep_api::egress::EgressPolicy;

    use super::*;
    use crate::{limits::Limits, names::ChosenBy, vms::MAX_NAMES};

    const VM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

    fn vm(policy: &str) -> Arc<Vm> {
        let vms = Vms::new(Limits::default());
        let policy =
            if policy == "all" { EgressPolicy::All } else { EgressPolicy::listing(&[policy]).unwrap() };
        vms.set_policy(VM, policy);
        vms.find(VM).unwrap()
    }

    fn names() -> Names {
        Names::open(tempfile::tempfile().unwrap()).unwrap()
    }

    fn query(name: &str, kind: RecordType) -> Vec<u8> {
        let mut message = Message::query();
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    }

    fn ask(vm: &Vm, names: &Names, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
        let answer = Message::from_vec(&answer(vm, names, &query(name, kind)).unwrap()).unwrap();
        let records = answer.answers.iter().map(|record| record.data.to_string()).collect();
        (answer.metadata.response_code, records)
    }

    #[tokio::test]
    async fn allowed_names_only_are_answered() {
        let (vm, names) = (vm("*.example.com"), names());
        let a = |name: &str| ask(&vm, &names, name, RecordType::A);
        assert_eq!(a("api.example.com."), (ResponseCode::NoError, vec!["198.18.0.1".to_owned()]));
        assert_eq!(a("API.Example.com."), (ResponseCode::NoError, vec!["198.18.0.1".to_owned()]));
        assert_eq!(a("b.example.com."), (ResponseCode::NoError, vec!["198.18.0.2".to_owned()]));
        for other in ["example.com.", "localhost.", "evil.example.", "."] {
            assert_eq!(a(other), (ResponseCode::Refused, vec![]), "{other}");
        }
        for kind in [RecordType::AAAA, RecordType::HTTPS, RecordType::SVCB, RecordType::TXT] {
            assert_eq!(ask(&vm, &names, "api.example.com.", kind), (ResponseCode::NoError, vec![]), "{kind}");
        }
        let report = vm.report();
        assert_eq!((report.refused, report.tries[0].name.as_deref()), (3, Some("example.com")));
    }

    #[tokio::test]
    async fn a_vm_that_asks_too_often_gets_no_answer() {
        let (vm, names) = (vm("all"), names());
        let asked = (0..1000).filter_map(|_| answer(&vm, &names, &query("a.example.", RecordType::A)));
        let answered = asked.count();
        assert!((200..1000).contains(&answered), "{answered}");
        // They are counted, and do not take the places of others in the list of tries.
        let report = vm.report();
        assert_eq!((report.refused, report.tries.len()), (1000 - answered as u64, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_that_uses_too_many_names_takes_no_further_addresses() {
        let (vm, names) = (vm("all"), names());
        let others = self::names();
        for number in 0..MAX_NAMES {
            vm.use_name(&others, &format!("n{number}.example")).unwrap();
        }
        let refused = ask(&vm, &names, "new.example.", RecordType::A);
        assert_eq!(refused, (ResponseCode::Refused, vec![]));
        assert_eq!(names.find("new.example"), None);
        // The control: the first address is free for another VM.
        let answered = ask(&self::vm("all"), &names, "new.example.", RecordType::A);
        assert_eq!(answered, (ResponseCode::NoError, vec!["198.18.0.1".to_owned()]));
        assert_eq!(vm.report().tries[0].reason.as_deref(), Some("the VM uses too many names"));
    }

    #[tokio::test]
    async fn names_of_many_vms_take_the_numbers_of_guests_alone() {
        const VMS: usize = 10;
        const OF_EACH: usize = 200;
        /// Three quarters of the numbers, but for half of what the VMs ask for.
        const TAKEN: usize = 49_152 - VMS * OF_EACH / 2;
        let names = names();
        for number in 0..TAKEN {
            names.address(&format!("taken{number}.example"), None, ChosenBy::Guest).unwrap();
        }
        let all: Vec<Arc<Vm>> = (0..VMS).map(|_| vm("all")).collect();
        let mut answered = 0;
        for (number, vm) in all.iter().enumerate() {
            for other in 0..OF_EACH {
                let (code, _) = ask(vm, &names, &format!("n{number}.x{other}.example."), RecordType::A);
                answered += usize::from(code == ResponseCode::NoError);
            }
        }
        assert_eq!(answered, VMS * OF_EACH / 2);
        let refused: u64 = all.iter().map(|vm| vm.report().refused).sum();
        assert_eq!(refused, (VMS * OF_EACH - answered) as u64);
        // The control: a name that a policy lists gets an address still, and the first names keep theirs.
        let listed = ask(&vm("api.example"), &names, "api.example.", RecordType::A);
        assert_eq!(listed, (ResponseCode::NoError, vec!["198.18.192.1".to_owned()]));
        for (name, address) in [("taken0.example.", "198.18.0.1"), ("n0.x0.example.", "198.18.188.25")] {
            let first = ask(&vm("all"), &names, name, RecordType::A);
            assert_eq!(first, (ResponseCode::NoError, vec![address.to_owned()]), "{name}");
        }
    }

    #[tokio::test]
    async fn a_loop_of_pointers_gets_no_answer() {
        let (vm, names) = (vm("all"), names());
        let header = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let ask = |name: &[u8]| answer(&vm, &names, &[&header[..], name, &[0, 1, 0, 1]].concat());
        // The question begins at byte 12. To itself; to each other; to its own label.
        for name in [&[0xc0, 12][..], &[0xc0, 14, 0xc0, 12], &[1, b'a', 0xc0, 12]] {
            assert_eq!(ask(name), None, "{name:?}");
        }
        // The control.
        assert!(ask(&[1, b'a', 1, b'b', 0]).is_some());
    }

    /// The ends of connections from VMs with the addresses 127.0.0.1, 127.0.0.2 and so on.
    async fn connect(listener: SocketAddr, count: usize, vm: Ipv4Addr) -> Vec<TcpStream> {
        let mut connections = Vec::new();
        for _ in 0..count {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((vm, 0).into()).unwrap();
            connections.push(socket.connect(listener).await.unwrap());
        }
        connections
    }

    async fn is_answered(stream: &mut TcpStream) -> bool {
        let query = query("a.example.", RecordType::A);
        let framed = [&(query.len() as u16).to_be_bytes()[..], &query].concat();
        if stream.write_all(&framed).await.is_err() {
            return false;
        }
        let Ok(length) = stream.read_u16().await else { return false };
        stream.read_exact(&mut vec![0; usize::from(length)]).await.is_ok()
    }

    #[tokio::test]
    async fn the_connections_of_a_vm_and_of_all_vms_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let vms = Arc::new(Vms::new(Limits::default()));
        let guests = [1, 2].map(|last| Ipv4Addr::new(127, 0, 0, last));
        guests.iter().for_each(|guest| vms.set_policy(*guest, EgressPolicy::All));
        let (all, mut server) = (Arc::new(Semaphore::new(20)), JoinSet::new());
        server.spawn(serve_tcp(listener, Arc::clone(&vms), Arc::new(names()), Arc::clone(&all)));
        let mut open = connect(address, 17, guests[0]).await;
        let mut refused = open.pop().unwrap();
        assert!(!is_answered(&mut refused).await, "the limit of a VM");
        open.extend(connect(address, 4, guests[1]).await);
        for stream in &mut open {
            assert!(is_answered(stream).await);
        }
        let mut refused = connect(address, 1, guests[1]).await.remove(0);
        assert!(!is_answered(&mut refused).await, "the limit of all VMs");
        drop(open);
        let free = all.acquire_many(20).await.unwrap();
        drop(free);
        assert!(is_answered(&mut connect(address, 1, guests[1]).await.remove(0)).await);
        let vm = vms.find(guests[0]).unwrap();
        let taken = Arc::clone(&vm.connections).acquire_many_owned(1024).await.unwrap();
        assert!(!is_answered(&mut connect(address, 1, guests[0]).await.remove(0)).await, "the connections");
        drop(taken);
        assert_eq!([0, 1].map(|guest| vms.find(guests[guest]).unwrap().report().refused), [2, 1]);
    }

    #[tokio::test]
    async fn a_long_query_over_tcp_ends_its_connection_and_so_does_the_end_of_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let vms = Arc::new(Vms::new(Limits::default()));
        vms.set_policy(Ipv4Addr::LOCALHOST, EgressPolicy::All);
        let mut server = JoinSet::new();
        server.spawn(serve_tcp(listener, vms, Arc::new(names()), Arc::new(Semaphore::new(2))));
        let mut connections = connect(address, 2, Ipv4Addr::LOCALHOST).await;
        let mut byte = [0; 1];
        connections[0].write_u16(MAX_QUERY_BYTES as u16 + 1).await.unwrap();
        assert_eq!(connections[0].read(&mut byte).await.unwrap(), 0);
        // The control: the other one goes on, until the server is shut down.
        assert!(is_answered(&mut connections[1]).await);
        server.shutdown().await;
        assert!(!is_answered(&mut connections[1]).await);
    }

    #[tokio::test]
    async fn queries_over_tcp_are_answered_and_an_idle_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let vms = Arc::new(Vms::new(Limits::default()));
        vms.set_policy(Ipv4Addr::LOCALHOST, EgressPolicy::All);
        tokio::spawn(serve_tcp(listener, vms, Arc::new(names()), Arc::new(Semaphore::new(1))));
        let query = query("a.example.", RecordType::A);
        client.write_u16(query.len() as u16).await.unwrap();
        client.write_all(&query).await.unwrap();
        let mut answer = vec![0; usize::from(client.read_u16().await.unwrap())];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
        tokio::time::pause();
        assert_eq!(client.read(&mut answer).await.unwrap(), 0, "the server closes it");
    }

    proptest! {
        #[test]
        fn any_query_is_answered_or_ignored(mut bytes in prop::collection::vec(any::<u8>(), 0..80), header: bool) {
            if header && bytes.len() >= 12 {
                // One question, which may have loops of pointers.
                bytes[..12].copy_from_slice(&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            }
            let _ = answer(&vm("all"), &names(), &bytes);
        }
    }
}
