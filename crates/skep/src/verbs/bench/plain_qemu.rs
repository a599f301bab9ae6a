//! Boots the template's kernel and root file system with plain QEMU, without a snapshot, for comparison.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;
use skep_api::swarm::EngineReport;
use skep_engine::{Descriptors, LaunchSpec, Launcher, Purpose};

use super::{fleet::milliseconds, machine::memory, percentiles::Percentiles};
use crate::engine;

const PROGRAM: &str = "qemu-system-x86_64";
/// Printed by the guest agent on the console when it accepts commands.
const READY_LINE: &str = "skep-agent: ready";
/// Time limit for a boot: an emulated guest on a busy machine may hang.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// Results of boots with plain QEMU.
#[derive(Debug, Serialize)]
pub(super) struct PlainQemu {
    pub(super) boots: u32,
    /// From the start of QEMU until the guest accepts commands; null if no boot succeeded.
    pub(super) ready_ms: Option<Percentiles>,
    /// Null if it could not be read.
    pub(super) private_mb: Option<Percentiles>,
    pub(super) failures: Vec<String>,
}

/// Boots the template in a folder several times, one after the other. Blocks.
pub(super) fn boots(template: &Path, engine: &EngineReport, memory_mb: u64, number: u32) -> PlainQemu {
    let (mut ready, mut private, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let arguments = arguments(template, engine, memory_mb);
    for _ in 0..number {
        match arguments.as_deref().map_err(|error| io::Error::other(error.to_string())).and_then(boot) {
            Ok((time, private_mb)) => {
                ready.push(milliseconds(time));
                private.extend(private_mb);
            }
            Err(error) => failures.push(format!("plain QEMU: {error}")),
        }
    }
    PlainQemu {
        boots: number,
        ready_ms: Percentiles::of(ready),
        private_mb: Percentiles::of(private),
        failures,
    }
}

fn boot(arguments: &[String]) -> io::Result<(Duration, Option<f64>)> {
    let begun = Instant::now();
    let mut vmm = KillOnDrop(
        Command::new(PROGRAM)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let console = vmm.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(console).lines().map_while(Result::ok);
        if lines.any(|line| line.contains(READY_LINE)) {
            let _ = sender.send(begun.elapsed());
        }
    });
    match receiver.recv_timeout(BOOT_TIMEOUT) {
        Ok(time) => Ok((time, memory(vmm.0.id()).map(|memory| memory.private_mb))),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(io::Error::other(format!("the guest did not boot within {BOOT_TIMEOUT:?}")))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("QEMU ended before the guest had booted"))
        }
    }
}

/// QEMU arguments, with the devices that the guest agent needs.
fn arguments(template: &Path, engine: &EngineReport, memory_mb: u64) -> anyhow::Result<Vec<String>> {
    let file = |name: &str| template.join(name).display().to_string();
    let cpu = if engine.accel == "kvm" { "host" } else { "max" };
    let machine = format!("microvm,accel={},acpi=on,isa-serial=on", engine.accel);
    let append = kernel_command_line(engine, memory_mb)?;
    let root = format!("if=none,id=root,format=raw,readonly=on,file={}", file("root.erofs"));
    // Changes of the guest go into a temporary file; the template is not modified.
    let layer = format!("if=none,id=layer,format=raw,snapshot=on,file={}", file("layer.ext4"));
    Ok([
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-machine",
        &machine,
        "-cpu",
        cpu,
        "-m",
        &format!("{memory_mb}M"),
        "-kernel",
        &file("kernel"),
        "-initrd",
        &file("initrd"),
        "-append",
        &append,
        "-drive",
        &root,
        "-device",
        "virtio-blk-device,drive=root",
        "-drive",
        &layer,
        "-device",
        "virtio-blk-device,drive=layer",
        "-chardev",
        "null,id=agent",
        "-device",
        "virtio-serial-device",
        "-device",
        "virtserialport,chardev=agent,name=skep.agent",
    ]
    .map(str::to_owned)
    .to_vec())
}

/// The kernel command line of the bake: an emulated guest that calibrates its own clock may hang.
fn kernel_command_line(engine: &EngineReport, memory_mb: u64) -> anyhow::Result<String> {
    let nothing = || File::open("/dev/null").map(OwnedFd::from);
    let descriptors = Descriptors {
        monitor: nothing()?,
        agent: nothing()?,
        console: nothing()?,
        tap: nothing()?,
        ram: nothing()?,
        kernel: nothing()?,
        initrd: nothing()?,
        root: nothing()?,
        layer: nothing()?,
    };
    let purpose = Purpose::Bake { agent_parameters: "" };
    let order = LaunchSpec { vcpus: 1, memory_mb, mac: [0; 6], purpose, descriptors };
    let mut arguments = engine::from_report(engine)?.command(order).arguments.into_iter();
    let append = arguments.by_ref().skip_while(|word| word != "-append").nth(1);
    append.context("the engine boots no kernel")
}

/// A process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Self(child) = self;
        let _ = child.kill();
        let _ = child.wait();
    }
}
