//! The command line of QEMU. Device list and migration settings must be the same at bake and restore: a saved state
//! only loads into the same devices.

use std::os::fd::OwnedFd;

use serde_json::{Map, json};

use super::{LAYER_NODE, Qemu, preload};
use crate::{
    Error,
    launch::{DiskLimits, FIRST_FD, LaunchSpec, Launcher, Purpose, VmmCommand},
};

/// The kernel's command line.
///
/// `ipv6.disable`: VMs of a template would share its link-local address. `reboot=t` and `panic=-1`: a guest ends by a
/// reset, which ends the VMM. Under emulation `norandmaps` is added: code at a new address would be translated again,
/// which makes a command four times slower. `init_on_free`: pages that the guest freed are zeros, which take no memory in
/// the template, and a secret in them ends with its owner.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t ipv6.disable=1 \
                                   random.trust_cpu=off init_on_free=1";

/// Disks without a file. A restore may put files in their places, which a saved state does not depend on, so that VMs can
/// have disks that their template did not know.
const SPARE_DISKS: u8 = 4;
/// The size that a guest sees of a spare disk until it reads it anew.
const SPARE_DISK_BYTES: u64 = 1 << 40;

/// The options that a saved state depends on. The size of the guest is not among them, because it belongs to a template.
const OPTIONS_OF_STATE: [&str; 5] = ["-global", "-machine", "-cpu", "-serial", "-device"];

/// Size of the emulator's cache of translated code, in MiB. QEMU's default is 1 GiB, which a guest fills within minutes
/// of work. When the cache is full, QEMU flushes it and translates again.
const CODE_CACHE_MB: u64 = 64;
/// Maximum of all other memory of a VMM, in MiB: heap, page tables, code and stacks, and dirty page cache of the disk.
const OTHER_OVERHEAD_MB: u64 = 64;

impl Launcher for Qemu {
    fn overhead_mb(&self) -> u64 {
        if self.kvm { OTHER_OVERHEAD_MB } else { CODE_CACHE_MB + OTHER_OVERHEAD_MB }
    }

    fn check_version(&self) -> Result<(), Error> {
        self.program.check_version()
    }

    fn command(&self, mut order: LaunchSpec) -> Result<VmmCommand, Error> {
        self.check_version()?;
        let delta = order.descriptors.delta.take();
        let mut numbered = NumberedDescriptors::new(order.descriptors);
        let mut arguments = self.machine(&order.purpose, order.vcpus, order.memory_mb, &numbered);
        arguments.extend(devices(&order.mac, &order.disk_limits, &numbered));
        let mut environment = Vec::new();
        if order.purpose == Purpose::Restore {
            // `-S`: the state of a snapshot says that the processors run, which must wait for `cont`.
            arguments.extend(["-incoming", "defer", "-S"].map(str::to_owned));
            let preload = self.preload.as_ref().ok_or(Error::NoLauncher)?;
            environment = preload::environment(numbered.add(preload.open()?), numbered.ram);
            if let Some(delta) = delta {
                environment
                    .extend(preload::delta_environment(numbered.add(delta.data), numbered.add(delta.pages)));
            }
        }
        Ok(VmmCommand {
            program: self.program.path().to_owned(),
            arguments,
            environment,
            descriptors: numbered.descriptors,
            needs_kvm: self.kvm,
        })
    }
}

impl Qemu {
    /// Kernel parameters for the time stamp counter of an emulated guest, which is the host's. On a busy host the guest
    /// cannot calibrate it, and without another clock it would wait for its first tick for ever. `tsc=reliable`
    /// disables the watchdog that compares the counter with timer ticks: a busy host loses ticks, so the guest would
    /// mark the counter unstable, and all VMs of that snapshot would have a clock resolution of 4 ms.
    fn clock_parameters(&self) -> String {
        self.tsc_khz.map(|khz| format!(" tsc_early_khz={khz} tsc=reliable")).unwrap_or_default()
    }

    /// The values of the options that a saved state depends on, with the same address and descriptors for each VM.
    pub(super) fn device_words(&self) -> String {
        let fds = NumberedDescriptors::default();
        let mut arguments = self.machine(&Purpose::Restore, 0, 0, &fds);
        arguments.extend(devices(&[0; 6], &DiskLimits::default(), &fds));
        let pairs = arguments.windows(2).filter(|pair| OPTIONS_OF_STATE.contains(&pair[0].as_str()));
        pairs.map(|pair| pair.join(" ")).collect::<Vec<_>>().join("\n")
    }

    fn machine(
        &self,
        purpose: &Purpose,
        vcpus: u32,
        memory_mb: u64,
        fds: &NumberedDescriptors,
    ) -> Vec<String> {
        // The emulator runs `rep movsb` byte by byte. Without the ERMS flag the guest copies words instead, which is
        // two to four times as fast.
        let (accel, cpu, emulated) = if self.kvm {
            ("kvm".to_owned(), "host", "")
        } else {
            (format!("tcg,tb-size={CODE_CACHE_MB}"), "max,-erms", " norandmaps")
        };
        let (share, parameters) = match purpose {
            Purpose::Bake => ("on", self.clock_parameters()),
            // The restored kernel has already read its command line.
            Purpose::Restore => ("off", String::new()),
        };
        to_arguments(&[
            ("-nodefaults", ""),
            ("-no-user-config", ""),
            ("-no-reboot", ""),
            ("-display", "none"),
            ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
            ("-global", "migration.send-configuration=off"),
            // The description of a saved state is only informative, and QEMU 10.0 fails at it without the
            // configuration.
            ("-machine", "microvm,acpi=on,isa-serial=on,suppress-vmdesc=on,memory-backend=ram"),
            ("-accel", &accel),
            ("-cpu", cpu),
            ("-smp", &vcpus.to_string()),
            ("-m", &format!("{memory_mb}M")),
            (
                "-object",
                &format!(
                    "memory-backend-file,id=ram,size={memory_mb}M,mem-path=/proc/self/fd/{},share={share},merge=off",
                    fds.ram
                ),
            ),
            ("-kernel", &format!("/proc/self/fd/{}", fds.kernel)),
            ("-initrd", &format!("/proc/self/fd/{}", fds.initrd)),
            ("-append", &format!("{KERNEL_COMMAND_LINE}{emulated}{parameters}")),
        ])
    }
}

/// All devices of a guest: serial console, root and layer, spare disks, network and agent channel; and the monitor.
fn devices(mac: &[u8; 6], limits: &DiskLimits, fds: &NumberedDescriptors) -> Vec<String> {
    let socket = |id: &str, fd: i32| format!("socket,id={id},fd={fd},server=on,wait=off");
    // The filter counts each request against the limits of the group. It is no device, so a saved state does not depend on
    // it. Flushes need no limit: QEMU ignores one that follows no write.
    let disk = |id: &str, set: u8, read_only: &str| {
        format!(
            "driver=throttle,node-name={id},throttle-group=disks,read-only={read_only},file.driver=raw,\
             file.read-only={read_only},file.file.driver=file,file.file.filename=/dev/fdset/{set},\
             file.file.locking=off"
        )
    };
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut arguments = to_arguments(&[
        ("-chardev", &socket("console", fds.console)),
        ("-serial", "chardev:console"),
        ("-chardev", &socket("monitor", fds.monitor)),
        ("-mon", "chardev=monitor,mode=control"),
        ("-add-fd", &format!("fd={},set=1", fds.root)),
        ("-add-fd", &format!("fd={},set=2", fds.layer)),
        ("-object", &throttle_group(limits)),
        ("-blockdev", &disk("root", 1, "on")),
        ("-blockdev", &disk(LAYER_NODE, 2, "off")),
        ("-device", "virtio-blk-device,drive=root,rerror=report,werror=report"),
        ("-device", "virtio-blk-device,drive=layer,rerror=report,werror=report"),
        ("-netdev", &format!("tap,id=net,fd={}", fds.tap)),
        ("-device", &format!("virtio-net-device,netdev=net,mac={mac}")),
        ("-chardev", &socket("agent", fds.agent)),
        ("-device", "virtio-serial-device,max_ports=2"),
        ("-device", "virtserialport,chardev=agent,name=skep.agent"),
    ]);
    // Last, so that the names and addresses of the others stay.
    for number in 0..SPARE_DISKS {
        let node = format!("driver=null-co,node-name=spare{number},size={SPARE_DISK_BYTES},read-zeroes=on");
        let device = format!("virtio-blk-device,drive=spare{number},rerror=report,werror=report");
        arguments.extend(to_arguments(&[("-blockdev", &node), ("-device", &device)]));
    }
    arguments
}

/// The limits that all disks of the VM share.
fn throttle_group(limits: &DiskLimits) -> String {
    let mut fields = Map::new();
    for (name, limit) in [("bps", limits.bytes), ("iops", limits.operations)] {
        let Some(limit) = limit else { continue };
        fields.insert(format!("{name}-total"), limit.get().into());
        // Without it, only those of 100 ms may be done at once, and each command that begins would wait.
        fields.insert(format!("{name}-total-max"), limit.get().into());
    }
    json!({"qom-type": "throttle-group", "id": "disks", "limits": fields}).to_string()
}

fn to_arguments(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs
        .iter()
        .flat_map(|(option, value)| [*option, *value])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The numbers of the descriptors in the VMM, and the descriptors in that order.
#[derive(Default)]
struct NumberedDescriptors {
    monitor: i32,
    agent: i32,
    console: i32,
    tap: i32,
    ram: i32,
    kernel: i32,
    initrd: i32,
    root: i32,
    layer: i32,
    /// The number of the last descriptor.
    last: i32,
    descriptors: Vec<OwnedFd>,
}

impl NumberedDescriptors {
    /// Adds a descriptor and returns its number.
    fn add(&mut self, descriptor: OwnedFd) -> i32 {
        self.descriptors.push(descriptor);
        self.last += 1;
        self.last
    }

    fn new(fds: crate::launch::Descriptors) -> Self {
        let mut next = FIRST_FD - 1;
        let mut number = || {
            next += 1;
            next
        };
        Self {
            monitor: number(),
            agent: number(),
            console: number(),
            tap: number(),
            ram: number(),
            kernel: number(),
            initrd: number(),
            root: number(),
            layer: number(),
            last: number() - 1,
            descriptors: vec![
                fds.monitor,
                fds.agent,
                fds.console,
                fds.tap,
                fds.ram,
                fds.kernel,
                fds.initrd,
                fds.root,
                fds.layer,
            ],
        }
    }
}

#[cfg(test)]
mod tests;
