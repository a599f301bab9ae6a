//! The resources that an idle server holds, to be compared before and after a soak test.

use std::{fs, path::Path};

use crate::harness::{Skep, eventually, remains_of_vms};

/// Memory that an allocator may keep beyond what is in use.
const SLACK_KB: u64 = 8 << 10;

/// What a server holds while it has no VM but those of its pool.
#[derive(Debug)]
pub(super) struct Account {
    keeper: ProcessResources,
    server: ProcessResources,
    files: usize,
}

/// What one process holds.
#[derive(Debug)]
struct ProcessResources {
    pid: u32,
    memory_kb: u64,
    descriptors: usize,
    threads: usize,
}

impl Account {
    /// Waits until the server has come to rest, and looks.
    pub(super) async fn at_rest(skep: &Skep, pool: u64) -> Self {
        eventually("a full pool and no other VM", async || {
            let status = skep.get("/api/swarm/status").await.ok(200);
            status["count"] == 0 && status["pool"]["base"]["ready"] == pool
        })
        .await;
        for (kind, _) in remains_of_vms(skep.data_dir.path()) {
            eventually(&format!("the {kind} of the pool alone"), async || {
                let found = remains_of_vms(skep.data_dir.path());
                found.iter().any(|(of, vms)| *of == kind && vms.len() as u64 == pool)
            })
            .await;
        }
        Self {
            keeper: ProcessResources::of(skep.pid()),
            server: ProcessResources::of(skep.server_pid().unwrap()),
            files: files_below(skep.data_dir.path()),
        }
    }

    /// Fails where more is held than before, beyond what a number of connections and an allocator explain.
    pub(super) fn assert_no_more_than(&self, before: &Self, connections: usize) {
        for (name, now, then) in
            [("keeper", &self.keeper, &before.keeper), ("server", &self.server, &before.server)]
        {
            // Another process has a memory of its own.
            if now.pid != then.pid {
                continue;
            }
            let memory = then.memory_kb + then.memory_kb / 10 + SLACK_KB;
            assert!(now.memory_kb <= memory, "the {name}'s memory grew: {then:?}, then {now:?}");
            let descriptors = then.descriptors + connections;
            assert!(now.descriptors <= descriptors, "the {name} lost descriptors: {then:?}, then {now:?}");
            // Those for blocking work come and go.
            assert!(now.threads <= then.threads + 32, "the {name} lost threads: {then:?}, then {now:?}");
        }
        assert!(self.files <= before.files, "files were left: {} before, {} now", before.files, self.files);
    }
}

impl ProcessResources {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let entries = |folder: &str| fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap().count();
        Self {
            pid,
            memory_kb: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
            descriptors: entries("fd"),
            threads: entries("task"),
        }
    }
}

/// Sockets and folders too.
fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| 1 + if path.is_dir() { files_below(&path) } else { 0 }).sum()
}

#[test]
fn growth_with_the_number_of_boots_is_detected() {
    let account = |memory_kb, descriptors, files| {
        let holding = || ProcessResources { pid: 1, memory_kb, descriptors, threads: 3 };
        Account { keeper: holding(), server: holding(), files }
    };
    let before = account(30_000, 40, 18);
    account(31_000, 60, 18).assert_no_more_than(&before, 32);
    for grown in [account(60_000, 40, 18), account(30_000, 80, 18), account(30_000, 40, 19)] {
        let compared = std::panic::catch_unwind(|| grown.assert_no_more_than(&before, 32));
        assert!(compared.is_err(), "{grown:?} passes");
    }
}
