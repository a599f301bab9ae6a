//! Tests of both ends in one process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs::File,
    io::{Read, Seek, Write},
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Duration,
};

use skep_api::{ErrorCode, Failure, TemplateId, VmId, templates::GuestSize};
use skep_keeper_protocol::{
    Answer, Answerer, Error, HeldVm, KeeperEnd, LIST_PAGE_SIZE, Launched, Load, MAX_TEMPLATE_TEXT_BYTES,
    OutOfMemory, Request, ServerEnd, ServerSetup, SwarmAvailability, TEMPLATE_PAGE_SIZE, TemplateState,
    TemplateStatus, Usage, pair,
};
use tokio::{io::AsyncReadExt, time::timeout};

const PATIENCE: Duration = Duration::from_secs(10);

async fn ends() -> (KeeperEnd, ServerEnd) {
    let (keeper, server) = pair().unwrap();
    let keeper = KeeperEnd::new(keeper).unwrap();
    let setup = ServerSetup {
        settings: serde_json::json!({"a": 1}),
        admin_key: None,
        swarm: SwarmAvailability::Unable { reason: "a test".to_owned() },
        succeeds: false,
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    keeper.send_setup(&setup, &[listener.into()]).await.unwrap();
    let (server, received, listeners) = ServerEnd::connect(server).await.unwrap();
    assert_eq!(received.settings, setup.settings);
    let [listener] = <[OwnedFd; 1]>::try_from(listeners).unwrap();
    assert_eq!(std::net::TcpListener::from(listener).local_addr().unwrap(), address);
    (keeper, server)
}

fn launched(vm: VmId) -> Launched {
    Launched {
        vm,
        pid: 42,
        ip: Ipv4Addr::LOCALHOST,
        prefix_len: 16,
        gateway: Ipv4Addr::LOCALHOST,
        mac: [2, 0, 0, 0, 0, 1],
        template_key: "key".to_owned(),
        vcpus: 1,
        memory_mb: 128,
    }
}

fn state_file() -> OwnedFd {
    let mut file = tempfile();
    file.write_all(b"state").unwrap();
    file.rewind().unwrap();
    file.into()
}

fn tempfile() -> File {
    rustix::fs::memfd_create("state", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

async fn answer_launch(answerer: Answerer, vm: VmId) -> [UnixStream; 3] {
    let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
    let [(monitor, m), (agent, a), (console, c)] = pairs;
    let descriptors = [tempfile().into(), monitor.into(), agent.into(), console.into(), state_file()];
    answerer.answer(Answer::Launched(launched(vm)), &descriptors).await.unwrap();
    [m, a, c]
}

#[tokio::test]
async fn a_launch_brings_streams_and_the_state() {
    let (mut keeper, server) = ends().await;
    let vm = VmId::generate();
    let asked = tokio::spawn(async move { server.launch(vm, TemplateId::BASE, None).await });
    let (request, answerer) = keeper.receive().await.unwrap().unwrap();
    assert!(
        matches!(request, Request::Launch { vm: asked, template, .. } if asked == vm && template == TemplateId::BASE)
    );
    let [_, mut agent, _] = answer_launch(answerer, vm).await;
    let mut got = asked.await.unwrap().unwrap();
    assert_eq!((got.launched.vm, got.launched.pid), (vm, 42));
    agent.write_all(b"agent").unwrap();
    let mut word = [0; 5];
    got.agent.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"agent");
    let mut state = String::new();
    got.state.read_to_string(&mut state).unwrap();
    assert_eq!(state, "state");
}

#[tokio::test]
async fn a_long_list_is_split_into_pages_that_fit_a_packet() {
    let (mut keeper, server) = ends().await;
    let all: Vec<VmId> = (0..2 * LIST_PAGE_SIZE).map(|_| VmId::generate()).collect();
    let asked = tokio::spawn(async move { server.list().await });
    for part in [&all[..LIST_PAGE_SIZE], &all[LIST_PAGE_SIZE..], &[]] {
        let (request, answerer) = keeper.receive().await.unwrap().unwrap();
        let Request::List { after } = request else { panic!("{request:?}") };
        assert_eq!(
            after,
            part.first().map_or(all.last(), |first| all.iter().take_while(|vm| *vm != first).last()).copied()
        );
        // As large as an entry can be.
        let held = |vm: &VmId| {
            let launched = Launched { template_key: "k".repeat(64), ..launched(*vm) };
            HeldVm { launched, template: TemplateId::BASE, committed: false, load: load() }
        };
        answerer.answer(Answer::List { vms: part.iter().map(held).collect() }, &[]).await.unwrap();
    }
    let listed: Vec<VmId> = asked.await.unwrap().unwrap().iter().map(|held| held.launched.vm).collect();
    assert_eq!(listed, all);
}

#[tokio::test]
async fn a_page_of_templates_with_long_texts_fits_a_packet() {
    let (mut keeper, server) = ends().await;
    let asked = tokio::spawn(async move { server.list_templates().await });
    // Each character is escaped in JSON.
    let failure = Failure::new(ErrorCode::Internal, "\n".repeat(MAX_TEMPLATE_TEXT_BYTES));
    let status = |_| TemplateStatus {
        template: TemplateId::generate(),
        parent: Some(TemplateId::generate()),
        size: GuestSize { memory_mb: u64::MAX, vcpus: u32::MAX, disk_mb: u64::MAX },
        state: TemplateState::Failed { failure: failure.clone() },
        size_bytes: u64::MAX,
        own_bytes: u64::MAX,
    };
    let all: Vec<TemplateStatus> = (0..TEMPLATE_PAGE_SIZE + 1).map(status).collect();
    for (page, after) in [(&all[..TEMPLATE_PAGE_SIZE], None), (&all[TEMPLATE_PAGE_SIZE..], Some(31))] {
        let (request, answerer) = keeper.receive().await.unwrap().unwrap();
        let Request::ListTemplates { after: asked } = request else { panic!("{request:?}") };
        assert_eq!(asked, after.map(|at: usize| all[at].template));
        answerer.answer(Answer::Templates { templates: page.to_vec() }, &[]).await.unwrap();
    }
    assert_eq!(asked.await.unwrap().unwrap(), all);
}

#[tokio::test]
async fn an_attachment_brings_streams() {
    let (mut keeper, server) = ends().await;
    let vm = VmId::generate();
    let asked = tokio::spawn(async move { server.attach(vm).await });
    let (request, answerer) = keeper.receive().await.unwrap().unwrap();
    assert!(matches!(request, Request::Attach { vm: asked } if asked == vm));
    let [(monitor, _m), (agent, mut a), (console, _c)] = [(); 3].map(|()| UnixStream::pair().unwrap());
    let descriptors = [tempfile().into(), monitor.into(), agent.into(), console.into()];
    answerer.answer(Answer::Attached(launched(vm)), &descriptors).await.unwrap();
    let mut got = asked.await.unwrap().unwrap();
    a.write_all(b"agent").unwrap();
    let mut word = [0; 5];
    got.agent.read_exact(&mut word).await.unwrap();
    assert_eq!((&word, got.launched.pid), (b"agent", 42));
}

fn load() -> Load {
    Load { held_bytes: u64::MAX, cpu_us: u64::MAX, disk_bytes: u64::MAX }
}

#[tokio::test]
async fn answers_match_their_requests_in_any_order() {
    let (mut keeper, server) = ends().await;
    let (first, second) = (VmId::generate(), VmId::generate());
    let usage = tokio::spawn({
        let server = server.clone();
        async move { server.usage(first).await }
    });
    let (request, usage_answerer) = keeper.receive().await.unwrap().unwrap();
    assert!(matches!(request, Request::Usage { vm } if vm == first));
    let end = tokio::spawn(async move { server.end(second).await });
    let (request, end_answerer) = keeper.receive().await.unwrap().unwrap();
    assert!(matches!(request, Request::End { vm } if vm == second));

    end_answerer.answer(Answer::Ended { out_of_memory: Some(OutOfMemory::Kernel) }, &[]).await.unwrap();
    assert_eq!(end.await.unwrap().unwrap(), Some(OutOfMemory::Kernel));
    let reported = Usage {
        load: load(),
        memory_bytes: 1,
        memory_limit_bytes: 2,
        disk_size_bytes: 4,
        received_bytes: 5,
        sent_bytes: 6,
    };
    usage_answerer.answer(Answer::Usage(reported), &[]).await.unwrap();
    assert_eq!(usage.await.unwrap().unwrap().load, load());
}

#[tokio::test]
async fn a_refusal_keeps_its_message() {
    let (mut keeper, server) = ends().await;
    let asked =
        tokio::spawn(async move { server.launch(VmId::generate(), TemplateId::generate(), None).await });
    let (_, answerer) = keeper.receive().await.unwrap().unwrap();
    let refusal = Failure::new(ErrorCode::UnknownTemplate, "there is no template `nope`");
    answerer.answer(Answer::Refused(refusal.clone()), &[]).await.unwrap();
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::UnknownTemplate);
    assert_eq!(Failure::from(error), refusal);
}

#[tokio::test]
async fn a_vm_whose_launch_was_cancelled_is_ended() {
    let (mut keeper, server) = ends().await;
    let vm = VmId::generate();
    let asking = server.clone();
    let asked = tokio::spawn(async move { asking.launch(vm, TemplateId::BASE, None).await });
    let (_, answerer) = keeper.receive().await.unwrap().unwrap();
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    let _streams = answer_launch(answerer, vm).await;
    let (request, _) = timeout(PATIENCE, keeper.receive()).await.unwrap().unwrap().unwrap();
    assert!(matches!(request, Request::End { vm: ended } if ended == vm));
}

#[tokio::test]
async fn closing_the_keeper_fails_all_pending_requests() {
    let (mut keeper, server) = ends().await;
    let asked = tokio::spawn({
        let server = server.clone();
        async move { server.list().await }
    });
    let (_, answerer) = keeper.receive().await.unwrap().unwrap();
    assert!(!server.is_closed());
    drop((keeper, answerer));
    assert!(matches!(asked.await.unwrap(), Err(Error::Closed)));
    timeout(PATIENCE, server.closed()).await.unwrap();
    assert!(server.is_closed());
    assert!(matches!(server.list().await, Err(Error::Closed)));
}

#[tokio::test]
async fn an_invalid_request_is_a_protocol_error() {
    let (keeper, server) = pair().unwrap();
    let mut keeper = KeeperEnd::new(keeper).unwrap();
    rustix::net::send(&server, b"{\"id\":1,\"body\":{\"launch\":{}}}", rustix::net::SendFlags::empty())
        .unwrap();
    assert!(matches!(keeper.receive().await, Err(Error::Protocol(_))));
    drop(server);
    assert!(keeper.receive().await.unwrap().is_none());
}
