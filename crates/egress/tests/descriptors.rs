//! A proxy in a process that runs out of descriptors. The limit is that of the whole process, so this file has one test.

use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    os::fd::AsRawFd,
    process::abort,
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skep_egress::{Proxy, Resolver, Rules};

#[tokio::test(start_paused = true)]
async fn a_proxy_without_free_descriptors_waits_and_serves_later() {
    let proxy = Proxy::start(Resolver::system(Rules::default()), Box::new(|_, _| None)).await.unwrap();
    let mut caller = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    caller.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let next_free = File::open("/dev/null").unwrap();
    let (limit, few) = (getrlimit(Resource::Nofile), next_free.as_raw_fd().unsigned_abs().into());
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), maximum: limit.maximum }).unwrap();
    drop(next_free);
    let taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();

    // The clock is paused, and advances only while the runtime has nothing to do.
    let (idle, awaited) = mpsc::channel();
    thread::spawn(move || awaited.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| abort()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    idle.send(()).unwrap();

    setrlimit(Resource::Nofile, limit).unwrap();
    drop(taken);
    let answer = tokio::task::spawn_blocking(move || {
        let mut status = [0; 12];
        caller.read_exact(&mut status).map(|()| status)
    });
    assert_eq!(answer.await.unwrap().unwrap(), *b"HTTP/1.1 407", "it has no password");
}
