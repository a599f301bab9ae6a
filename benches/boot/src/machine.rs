//! CPU and memory use on the server's machine, if the client runs there too.

use std::{collections::BTreeMap, fs};

use serde::Serialize;
use skep_api::swarm::Vm;

/// The server's machine, on which this process runs too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    keeper: u32,
}

/// CPU time counters, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// All processors, including idle time.
    total: f64,
    /// All processors, without idle time.
    busy: f64,
    /// Keeper, server and VMMs, including ended ones.
    swarm: f64,
    /// Keeper and server.
    server: f64,
    client: f64,
}

/// The CPU time used between two points in time.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Cost {
    /// Of keeper, server and VMMs.
    pub(crate) cpu_ms_per_vm: f64,
    /// Of keeper and server.
    pub(crate) server_cpu_ms_per_vm: f64,
    /// Share of all processors that was used by other processes.
    pub(crate) other_load: f64,
}

/// Memory of a VM's process, in MiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Memory that no other process maps. It includes pages of files, such as the template's memory if only one VM
    /// runs.
    pub(crate) private_mb: f64,
    /// Memory that belongs to no file: the amount that another VM needs.
    pub(crate) anonymous_mb: f64,
    /// Memory with the proportional share of pages that other processes map too.
    pub(crate) proportional_mb: f64,
}

/// Values of /proc/PID/stat.
struct Process {
    parent: u32,
    own_ms: f64,
    /// Of its children that ended.
    ended_ms: f64,
}

impl Machine {
    /// This machine, if it runs the VM. The cgroup of the process must contain the VM's id, because the process id may
    /// belong to another process here.
    pub(crate) fn of(vm: &Vm) -> Option<Self> {
        let pid = vm.pid?;
        let in_its_group = cgroup_of(pid)?.contains(&vm.id.to_string());
        in_its_group.then(|| process(pid)).flatten().map(|vmm| Self { keeper: vmm.parent })
    }

    /// CPU time used until now.
    pub(crate) fn usage(self) -> Option<Usage> {
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

    /// The VMM processes of all VMs, including the pool.
    pub(crate) fn vmms(self) -> Vec<u32> {
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
    /// The CPU time since then, divided by the number of VMs.
    pub(crate) fn since(&self, then: &Self, vms: u32) -> Cost {
        let swarm = self.swarm - then.swarm;
        let client = self.client - then.client;
        // The counters have the resolution of clock ticks, so the difference may be slightly negative.
        let other = (self.busy - then.busy - swarm - client).max(0.0);
        let vms = f64::from(vms.max(1));
        Cost {
            cpu_ms_per_vm: swarm / vms,
            server_cpu_ms_per_vm: (self.server - then.server) / vms,
            other_load: other / (self.total - then.total).max(1.0),
        }
    }
}

/// CPU time of a process, in milliseconds.
pub(crate) fn cpu_ms(pid: u32) -> Option<f64> {
    process(pid).map(|process| process.own_ms)
}

/// Memory of a process; `None` without permission to read it.
pub(crate) fn memory(pid: u32) -> Option<Memory> {
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
    cgroup_of(pid).is_some_and(|groups| groups.contains("/vm_"))
}

fn cgroup_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

fn process(pid: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before it may contain blanks and parentheses.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        own_ms: (number(11)? + number(12)?) * tick_ms(),
        ended_ms: (number(13)? + number(14)?) * tick_ms(),
    })
}

/// The counters of all processors; those of the server are zero.
fn whole_machine() -> Option<Usage> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    // user nice system idle iowait irq softirq steal; the later columns are included in these.
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
    fn cpu_time_of_a_busy_process_increases() {
        let own = std::process::id();
        let before = cpu_ms(own).unwrap();
        while cpu_ms(own).unwrap() < before + 20.0 {}
        assert!(process(own).unwrap().parent > 0);
        assert!(memory(own).unwrap().private_mb > 0.1);
    }

    #[test]
    fn load_of_other_processes_is_separated() {
        let then = Usage { total: 0.0, busy: 0.0, swarm: 0.0, server: 0.0, client: 0.0 };
        let now = Usage { total: 2000.0, busy: 1000.0, swarm: 400.0, server: 100.0, client: 100.0 };
        let cost = now.since(&then, 4);
        assert_eq!((cost.cpu_ms_per_vm, cost.server_cpu_ms_per_vm, cost.other_load), (100.0, 25.0, 0.25));
    }
}
