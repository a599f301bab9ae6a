//! The start of a VMM: its record, its files, its cgroup, its sockets and its jail.

use std::{fs::File, os::fd::OwnedFd, path::Path, sync::Arc};

use skep_api::{Failure, TemplateId, VmId};
use skep_engine::{Descriptors, LaunchSpec, Purpose, VmmCommand};
use skep_jail::{
    CgroupLimits, CgroupTree, Confinement, Handles, Jail, ProcessSpec, ResourceLimits, StderrPipe,
    oom_score_adj,
};
use skep_network::Tap;

use super::VmResources;
use crate::{
    AdmitLoad, DataDir, Error, OpenTemplate, Origin, SwarmConfig,
    capture::Capture,
    disk_layer::{self, FileId},
    memory::MappedDelta,
    process_id::ProcessId,
    records::{InheritedFiles, Record, Records, VmmRecord},
    sockets::{SocketDir, SocketPairs},
};

const OPEN_FILES: u64 = 256;

pub(crate) struct LaunchContext<'a> {
    pub(crate) data_dir: &'a DataDir,
    pub(crate) swarm: &'a SwarmConfig,
    pub(crate) tree: &'a CgroupTree,
    pub(crate) binary: &'a Path,
    pub(crate) records: &'a Records,
    pub(crate) boot_id: &'a str,
    pub(crate) admit_load: Box<AdmitLoad<'a>>,
}

/// What a VM is restored from.
pub(crate) enum LaunchSource {
    Template(TemplateId),
    Capture(Arc<Capture>),
}

impl LaunchSource {
    /// The template on disk whose files the VM uses.
    fn template(&self) -> TemplateId {
        match self {
            Self::Template(template) => *template,
            Self::Capture(capture) => capture.origin.template,
        }
    }
}

impl VmResources {
    /// Starts the VMM. Returns its pidfd, the streams of monitor, agent and console, and the state file to restore.
    /// Blocks. After an error `self` holds the resources that exist.
    pub(crate) fn start(
        &mut self,
        site: &LaunchContext<'_>,
        vm: VmId,
        uid: u32,
        tap: Tap,
        source: &LaunchSource,
    ) -> Result<[OwnedFd; 5], Error> {
        // The record comes before any resource that outlives this process. The tap does not: it vanishes with its
        // descriptor, which only this process holds so far.
        let record = Record::pending(site.boot_id.to_owned(), vm, uid, &tap.port, source.template());
        site.records.write(self.record.insert(record))?;
        let opened = match source {
            LaunchSource::Template(template) => {
                let opened = site.swarm.templates.open(*template, &*site.admit_load)?;
                // Before the check: damage that it finds concerns other VMs of the edition as well.
                self.edition = opened.origin.is_none().then_some(opened.edition);
                site.swarm.templates.check(*template, opened.edition)?;
                opened
            }
            // Its files are in memory, and the VM that it was taken from runs with the same root file system.
            LaunchSource::Capture(capture) => {
                let origin = &capture.origin;
                site.swarm.templates.check_copy(origin.template, &origin.key)?;
                capture.open()?
            }
        };
        let (vcpus, memory_mb) = (opened.vcpus, opened.memory_mb);
        let Origin { template, key: template_key } = opened
            .origin
            .clone()
            .unwrap_or_else(|| Origin { template: source.template(), key: opened.key.clone() });
        let root = opened.root.try_clone().map(File::from).and_then(|root| FileId::of(&root));
        let root = Some(root.map_err(Error::io("root file system"))?);
        let inherited = Some(InheritedFiles::of(&opened).map_err(Error::io("files of the template"))?);
        let ram_sha256 = opened.ram_sha256.clone();
        let delta = opened.delta.as_ref().map(MappedDelta::of).transpose().map_err(Error::io("delta"))?;
        let (descriptors, layer) = self.spawn(site, vm, uid, tap, opened)?;
        if let (Some(record), Some(jailed)) = (&mut self.record, &self.jailed) {
            let process = ProcessId::of(jailed)?;
            record.template = template;
            record.vmm = Some(VmmRecord {
                process,
                template_key,
                vcpus,
                memory_mb,
                layer,
                root,
                inherited,
                delta,
                ram_sha256,
            });
            site.records.write(record)?;
        }
        Ok(descriptors)
    }

    fn spawn(
        &mut self,
        site: &LaunchContext<'_>,
        vm: VmId,
        uid: u32,
        tap: Tap,
        template: OpenTemplate,
    ) -> Result<([OwnedFd; 5], FileId), Error> {
        let OpenTemplate { vcpus, memory_mb, ram, kernel, initrd, root, state, layer, delta, .. } = template;
        let layer = disk_layer::copy(&File::from(layer), &site.data_dir.disk_layers(), uid)?;
        let layer_bytes = layer.metadata().map_err(Error::io("disk layer"))?.len();
        let layer_id = FileId::of(&layer).map_err(Error::io("disk layer"))?;
        let for_vmm = layer.try_clone().map_err(Error::io("disk layer"))?;
        self.layer = Some(layer);
        let group = self
            .group
            .insert(site.tree.create_group(&vm.to_string(), &group_limits(site.swarm, memory_mb, vcpus))?);
        let (sockets, lines) = SocketDir::create(site.data_dir.sockets().join(vm.to_string()))?;
        self.sockets = Some(sockets);
        let (pipe, stderr) = StderrPipe::create()?;
        self.stderr = Some(pipe);

        let SocketPairs { monitor, agent, console } = lines;
        let launch = LaunchSpec {
            vcpus,
            memory_mb,
            mac: tap.port.mac,
            disk_limits: site.swarm.limits.disk,
            purpose: Purpose::Restore,
            descriptors: Descriptors {
                monitor: monitor.listener,
                agent: agent.listener,
                console: console.listener,
                tap: tap.fd,
                ram,
                kernel,
                initrd,
                root,
                layer: for_vmm.into(),
                delta,
            },
        };
        let command = site.swarm.launcher.command(launch).map_err(Failure::from)?;
        let (order, inherited) = jail_order(command, vm, uid, layer_bytes, site.swarm.limits.pids);
        let handles =
            Handles { cgroup_procs_files: group.open_procs_files()?, stderr: Some(stderr), inherited };
        let jailed = self.jailed.insert(skep_jail::spawn(site.binary, &order, handles)?);
        let pidfd = jailed.pidfd.try_clone().map_err(Error::io("pidfd"))?;
        Ok(([pidfd, monitor.stream, agent.stream, console.stream, state], layer_id))
    }
}

fn group_limits(swarm: &SwarmConfig, memory_mb: u64, vcpus: u32) -> CgroupLimits {
    let limits = &swarm.limits;
    CgroupLimits {
        memory_bytes: (memory_mb + limits.overhead_mb) << 20,
        pids: limits.pids,
        cpu_weight: limits.cpu_weight * u64::from(vcpus),
        cpu_percent: Some(u64::from(vcpus) * 100 + limits.cpu_overhead_percent),
    }
}

fn jail_order(
    command: VmmCommand,
    vm: VmId,
    uid: u32,
    layer_bytes: u64,
    pids: u64,
) -> (ProcessSpec, Vec<OwnedFd>) {
    let VmmCommand { program, arguments, environment, descriptors, needs_kvm } = command;
    let order = ProcessSpec {
        program,
        arguments,
        environment,
        uid,
        gid: uid,
        groups: Vec::new(),
        oom_score_adj: oom_score_adj::VMM,
        confinement: Confinement::Jail(Jail {
            hostname: vm.to_string(),
            devices: if needs_kvm { vec!["/dev/kvm".into()] } else { Vec::new() },
            limits: ResourceLimits { open_files: OPEN_FILES, file_bytes: layer_bytes, processes: pids },
        }),
    };
    (order, descriptors)
}
