//! One VMM and its resources on this machine: process, cgroup, sockets, disk layer, user id and network port.

mod spawn;

use std::{
    fs::File,
    io,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    time::Duration,
};

use skep_api::{TemplateId, VmId, egress::EgressPolicy};
use skep_jail::{Cgroup, Jailed, StderrPipe};
use skep_keeper_protocol::{HeldVm, Launched, Load, OutOfMemory, Usage, VmEgress};
use skep_network::Port;

pub(crate) use self::spawn::{LaunchContext, LaunchSource};
use crate::{
    Error,
    capture::{CaptureOrigin, CaptureSource},
    disk_layer,
    memory::MappedDelta,
    records::{Record, Records, VmmRecord},
    sockets::SocketDir,
};

/// A killed process usually exits within milliseconds; one in the middle of a long write may take longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How many bytes of a VMM's standard error are logged.
const MAX_STDERR_BYTES: u64 = 4096;

/// The resources of one VM. Each is taken out when it has been removed.
#[derive(Debug, Default)]
pub(crate) struct VmResources {
    pub(crate) uid: Option<u32>,
    pub(crate) port: Option<Port>,
    pub(crate) record: Option<Record>,
    /// Edition of its template. `None` if an earlier keeper launched the VM.
    edition: Option<u64>,
    jailed: Option<Jailed>,
    group: Option<Cgroup>,
    sockets: Option<SocketDir>,
    layer: Option<File>,
    stderr: Option<StderrPipe>,
    out_of_memory: Option<OutOfMemory>,
}

/// The memory of one VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldMemory {
    /// Its anonymous memory, in bytes: what its end would free.
    pub(crate) held_bytes: u64,
    /// The delta that it maps, which is freed when nothing holds it any more.
    pub(crate) delta: Option<MappedDelta>,
    /// The memory of its guest, in bytes.
    pub(crate) guest_bytes: u64,
    /// Whether a caller has it. Other VMs are parked, or their boot is in progress.
    pub(crate) committed: bool,
}

impl VmResources {
    /// Resources that an earlier keeper created.
    pub(crate) fn adopted(
        record: Record,
        vmm: &VmmRecord,
        jailed: Jailed,
        group: Cgroup,
        sockets: SocketDir,
        port: Port,
    ) -> Self {
        Self {
            uid: Some(record.uid),
            port: Some(port),
            layer: disk_layer::find(jailed.pid, vmm.layer),
            record: Some(record),
            edition: None,
            jailed: Some(jailed),
            group: Some(group),
            sockets: Some(sockets),
            // The pipe closed with the keeper that read it.
            stderr: None,
            out_of_memory: None,
        }
    }

    /// The description that the server gets. `None` until the VMM runs.
    pub(crate) fn describe(&self) -> Option<HeldVm> {
        let (record, port) = (self.record.as_ref()?, self.port.as_ref()?);
        let vmm = record.vmm.as_ref()?;
        let launched = Launched {
            vm: record.vm,
            pid: vmm.process.pid,
            ip: port.ip,
            prefix_len: port.prefix_len,
            gateway: port.gateway,
            mac: port.mac,
            template_key: vmm.template_key.clone(),
            vcpus: vmm.vcpus,
            memory_mb: vmm.memory_mb,
        };
        let (template, committed) = (record.template, record.committed);
        Some(HeldVm { launched, template, committed, load: self.load() })
    }

    /// What a capture of the VM is made from. `None` if it has no VMM.
    ///
    /// # Errors
    /// The limit of open descriptors is reached.
    pub(crate) fn capture_source(&self) -> Result<Option<CaptureSource>, Error> {
        let (Some(record), Some(jailed), Some(layer)) = (&self.record, &self.jailed, &self.layer) else {
            return Ok(None);
        };
        let Some(vmm) = record.vmm.as_ref().filter(|_| self.out_of_memory.is_none()) else { return Ok(None) };
        let origin = CaptureOrigin {
            template: record.template,
            key: vmm.template_key.clone(),
            ram_sha256: vmm.ram_sha256.clone(),
            vcpus: vmm.vcpus,
            memory_mb: vmm.memory_mb,
        };
        let layer = layer.try_clone().map_err(Error::io("disk layer"))?;
        let VmmRecord { root, inherited, .. } = *vmm;
        Ok(Some(CaptureSource { vm: record.vm, pid: jailed.pid, origin, root, inherited, layer }))
    }

    /// Whether the VM outlives its server.
    pub(crate) fn committed(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.committed)
    }

    /// What the VM may connect to outside, by its address. `None` if that is nothing.
    pub(crate) fn egress(&self) -> Option<(Ipv4Addr, VmEgress)> {
        let record = self.record.as_ref()?;
        Some((record.ip, record.egress())).filter(|(_, egress)| egress.policy != EgressPolicy::None)
    }

    /// The template that the VM was restored from, with its edition. `None` if an earlier keeper launched it.
    pub(crate) fn origin(&self) -> Option<(TemplateId, u64)> {
        Some((self.template()?, self.edition?))
    }

    /// The template that the VM was restored from.
    pub(crate) fn template(&self) -> Option<TemplateId> {
        Some(self.record.as_ref()?.template)
    }

    /// Kills the VMM because memory ran out and removes nothing. Returns the process to wait for, or `None` if no VMM
    /// runs.
    ///
    /// # Errors
    /// The system call failed.
    pub(crate) fn kill_for_memory(&mut self, reason: OutOfMemory) -> Result<Option<Jailed>, Error> {
        let Some(jailed) = &self.jailed else { return Ok(None) };
        let pidfd = jailed.pidfd.try_clone().map_err(Error::io("pidfd"))?;
        jailed.kill()?;
        self.out_of_memory = Some(reason);
        Ok(Some(Jailed { pid: jailed.pid, pidfd }))
    }

    /// Memory that the VM holds and memory of its guest. `None` if it has no VMM, or one that was killed for memory.
    pub(crate) fn memory_share(&self) -> Option<HeldMemory> {
        let vmm = self.record.as_ref()?.vmm.as_ref()?;
        let killed = self.out_of_memory.is_some();
        (!killed).then(|| HeldMemory {
            held_bytes: self.load().held_bytes,
            delta: vmm.delta,
            guest_bytes: vmm.memory_mb << 20,
            committed: self.committed(),
        })
    }

    /// The delta that the VM maps. `None` if it has none, or a VMM that was killed for memory.
    pub(crate) fn delta(&self) -> Option<MappedDelta> {
        let vmm = self.record.as_ref()?.vmm.as_ref()?;
        vmm.delta.filter(|_| self.out_of_memory.is_none())
    }

    /// Kills the VMM and removes nothing.
    pub(crate) fn kill(&self) -> Result<(), Error> {
        self.jailed.as_ref().map_or(Ok(()), |jailed| Ok(jailed.kill()?))
    }

    /// The pidfd, and new streams of monitor, agent and console. `None` if the VMM has ended.
    pub(crate) fn attach(&self) -> Result<Option<[OwnedFd; 4]>, Error> {
        let (Some(jailed), Some(sockets)) = (&self.jailed, &self.sockets) else { return Ok(None) };
        if jailed.wait(Duration::ZERO)? {
            return Ok(None);
        }
        let pidfd = jailed.pidfd.try_clone().map_err(Error::io("pidfd"))?;
        let [monitor, agent, console] = sockets.connect()?;
        Ok(Some([pidfd, monitor, agent, console]))
    }

    /// Kills the VMM and removes all its resources but the user id and the network port. Blocks for some tens of
    /// milliseconds. May be called again after an error.
    pub(crate) fn release(&mut self, vm: VmId, records: &Records) -> Result<(), Error> {
        if let Some(jailed) = &self.jailed {
            let ended_before = jailed.wait(Duration::ZERO)?;
            jailed.kill()?;
            if !jailed.wait(KILL_TIMEOUT)? {
                let error = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Error::io(format!("end of process {}", jailed.pid))(error));
            }
            let status = jailed.reap();
            if ended_before {
                let stderr =
                    self.stderr.take().map(|stderr| stderr.read(MAX_STDERR_BYTES)).unwrap_or_default();
                tracing::info!(%vm, pid = jailed.pid, ?status, stderr, "the VMM of {vm} had ended by itself");
            }
        }
        if let Some(group) = &self.group {
            // Read after the processes exited and before the group is removed.
            let by_kernel = (group.oom_kills() > 0).then_some(OutOfMemory::Kernel);
            self.out_of_memory = self.out_of_memory.or(by_kernel);
            group.remove()?;
        }
        if let Some(sockets) = &self.sockets {
            sockets.remove()?;
        }
        // Last: after a crash, the record is how the other resources are found.
        records.remove(vm)?;
        *self = Self {
            uid: self.uid,
            port: self.port.take(),
            out_of_memory: self.out_of_memory,
            ..Self::default()
        };
        Ok(())
    }

    /// Why the VM was ended because memory ran out, if it was. Known after `release`.
    pub(crate) fn out_of_memory(&self) -> Option<OutOfMemory> {
        self.out_of_memory
    }

    /// The usage without the traffic, which [`Network`](skep_network::Network) counts.
    pub(crate) fn usage(&self) -> Usage {
        let layer = self.layer.as_ref().and_then(|layer| layer.metadata().ok());
        let of_group = |figure: fn(&Cgroup) -> u64| self.group.as_ref().map_or(0, figure);
        Usage {
            load: self.load(),
            memory_bytes: of_group(Cgroup::memory_bytes),
            memory_limit_bytes: of_group(Cgroup::memory_limit_bytes),
            disk_size_bytes: layer.map_or(0, |found| found.len()),
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    fn load(&self) -> Load {
        let of_group = |figure: fn(&Cgroup) -> u64| self.group.as_ref().map_or(0, figure);
        let layer = self.layer.as_ref().and_then(|layer| layer.metadata().ok());
        Load {
            held_bytes: of_group(Cgroup::anonymous_bytes),
            cpu_us: of_group(Cgroup::cpu_us),
            // st_blocks counts 512-byte units, independent of the file system's block size.
            disk_bytes: layer.map_or(0, |found| found.blocks() * 512),
        }
    }
}
