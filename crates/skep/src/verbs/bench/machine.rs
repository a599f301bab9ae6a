//! What the processors and the memory of this machine are used for, where it is the server's.

use std::{collections::BTreeMap, fs};

use serde::Serialize;
use skep_api::swarm::Vm;

/// The machine that the server runs on, which is this one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    keeper: u32,
}

/// Milliseconds of processors since some point in the past.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// All processors, at work or not.
    total: f64,
    /// All processors at work.
    busy: f64,
    /// Keeper, server and VMMs, those that ended included.
    swarm: f64,
    /// Keeper and server alone.
    server: f64,
    /// This process.
    client: f64,
}

/// What happened between two points in time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Cost {
    /// Keeper, server and VMMs, for each VM.
    pub(super) cpu_ms_per_vm: f64,
    /// Of it keeper and server.
    pub(super) server_cpu_ms_per_vm: f64,
    /// The share of all processors that was neither ours nor this client's.
    pub(super) other_load: f64,
}

/// What a VM's process holds, in MiB.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// What nobody else maps. Pages of files count too, the template's memory among them: a VM that is alone has more.
    pub(super) private_mb: f64,
    /// What belongs to no file: that much one VM more takes.
    pub(super) anonymous_mb: f64,
    /// The same with its share of what others use too.
    pub(super) proportional_mb: f64,
}

/// A process as /proc tells of it.
struct Process {
    parent: u32,
    own_ms: f64,
    /// Of its children that ended.
    ended_ms: f64,
}

impl Machine {
    /// This machine, if this VM is a process of it: its cgroup has its name, whatever the number means here.
    pub(super) fn of(vm: &Vm) -> Option<Self> {
        let in_its_group = group_of(vm.pid)?.contains(&vm.id.to_string());
        in_its_group.then(|| process(vm.pid)).flatten().map(|vmm| Self { keeper: vmm.parent })
    }

    /// What was used up to now.
    pub(super) fn usage(self) -> Option<Usage> {
        let keeper = process(self.keeper)?;
        let mut usage = Usage { swarm: keeper.ended_ms, server: keeper.own_ms, ..whole_machine()? };
        for (pid, child) in self.children() {
            if is_vmm(pid) {
                usage.swarm += child.own_ms;
            } else {
                usage.server += child.own_ms + child.ended_ms;
            }
        }
        usage.swarm += usage.server;
        let client = process(std::process::id())?;
        usage.client = client.own_ms + client.ended_ms;
        Some(usage)
    }

    /// The processes of all VMs, parked ones too.
    pub(super) fn vmms(self) -> Vec<u32> {
        self.children().into_keys().filter(|pid| is_vmm(*pid)).collect()
    }

    fn children(self) -> BTreeMap<u32, Process> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all = numbers.filter_map(|pid| Some((pid, process(pid)?)));
        all.filter(|(_, process)| process.parent == self.keeper).collect()
    }
}

impl Usage {
    /// What was used since then, for this many VMs.
    pub(super) fn since(&self, then: &Self, vms: u32) -> Cost {
        let (swarm, client) = (self.swarm - then.swarm, self.client - then.client);
        // Ticks of a clock: what ran for less is not always seen, and ours may seem more than all.
        let other = (self.busy - then.busy - swarm - client).max(0.0);
        let vms = f64::from(vms.max(1));
        Cost {
            cpu_ms_per_vm: swarm / vms,
            server_cpu_ms_per_vm: (self.server - then.server) / vms,
            other_load: other / (self.total - then.total).max(1.0),
        }
    }
}

/// Milliseconds of processors that a process has used.
pub(super) fn cpu_ms(pid: u32) -> Option<f64> {
    process(pid).map(|process| process.own_ms)
}

/// What a process holds; `None` where that may not be read.
pub(super) fn memory(pid: u32) -> Option<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let sum = |begin: &str| {
        let lines = text.lines().filter(|line| line.starts_with(begin));
        let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        kib.sum::<f64>() / 1024.0
    };
    Some(Memory {
        private_mb: sum("Private_"),
        anonymous_mb: sum("Anonymous:"),
        proportional_mb: sum("Pss:"),
    })
}

fn is_vmm(pid: u32) -> bool {
    group_of(pid).is_some_and(|groups| groups.contains("/vm_"))
}

fn group_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

fn process(pid: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, blanks and brackets too.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own_ms: (number(11)? + number(12)?) * tick_ms(),
        ended_ms: (number(13)? + number(14)?) * tick_ms(),
    })
}

/// All processors; what is ours is not known yet.
fn whole_machine() -> Option<Usage> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    // user nice system idle iowait irq softirq steal; what follows is counted in them.
    let ticks: Vec<f64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let total: f64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(Usage {
        total: total * tick_ms(),
        busy: (total - idle) * tick_ms(),
        swarm: 0.0,
        server: 0.0,
        client: 0.0,
    })
}

fn tick_ms() -> f64 {
    1000.0 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_is_seen_to() {
        let own = std::process::id();
        let before = cpu_ms(own).unwrap();
        while cpu_ms(own).unwrap() < before + 20.0 {}
        assert!(process(own).unwrap().parent > 0);
        assert!(memory(own).unwrap().private_mb > 0.1);
    }

    #[test]
    fn load_that_is_not_ours_is_others() {
        let then = Usage { total: 0.0, busy: 0.0, swarm: 0.0, server: 0.0, client: 0.0 };
        let now = Usage { total: 2000.0, busy: 1000.0, swarm: 400.0, server: 100.0, client: 100.0 };
        let cost = now.since(&then, 4);
        assert_eq!((cost.cpu_ms_per_vm, cost.server_cpu_ms_per_vm, cost.other_load), (100.0, 25.0, 0.25));
    }
}
