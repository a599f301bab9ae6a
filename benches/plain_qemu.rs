//! Boots the kernel and root file system of a template with plain QEMU, without a snapshot, one boot after the other, and
//! prints the milliseconds until the guest agent accepts commands: one line for each boot.
//!
//! Usage: `plain_qemu TEMPLATE_DIR MEMORY_MB BOOTS`. With `--arguments` in place of the boots it prints QEMU's arguments, as
//! a JSON array.

use std::{
    env,
    error::Error,
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use skep_api::swarm::EngineReport;
use skep_engine::{Descriptors, DiskLimits, Engine, LaunchSpec, Purpose};

const PROGRAM: &str = "qemu-system-x86_64";
/// Printed by the guest agent on the console when it accepts commands.
const READY_LINE: &str = "skep-agent: ready";
/// Time limit for a boot: an emulated guest on a busy machine may hang.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [template, memory_mb, boots] = arguments.as_slice() else {
        return Err("usage: plain_qemu TEMPLATE_DIR MEMORY_MB BOOTS|--arguments".into());
    };
    let memory_mb = memory_mb.parse()?;
    let engine = skep_engine::select()?;
    let append = kernel_command_line(&*engine, memory_mb)?;
    let arguments = qemu_arguments(Path::new(template), engine.report(), memory_mb, &append);
    if boots == "--arguments" {
        println!("{}", serde_json::to_string(&arguments)?);
        return Ok(());
    }
    for _ in 0..boots.parse::<u32>()? {
        println!("{:.1}", boot(&arguments)?.as_secs_f64() * 1000.0);
    }
    Ok(())
}

fn boot(arguments: &[String]) -> io::Result<Duration> {
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
    receiver.recv_timeout(BOOT_TIMEOUT).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => {
            io::Error::other(format!("the guest did not boot within {BOOT_TIMEOUT:?}"))
        }
        mpsc::RecvTimeoutError::Disconnected => io::Error::other("QEMU ended before the guest had booted"),
    })
}

/// QEMU arguments, with the devices that the guest agent needs.
fn qemu_arguments(template: &Path, engine: &EngineReport, memory_mb: u64, append: &str) -> Vec<String> {
    let file = |name: &str| template.join(name).display().to_string();
    let cpu = if engine.accel == "kvm" { "host" } else { "max" };
    let machine = format!("microvm,accel={},acpi=on,isa-serial=on", engine.accel);
    let root = format!("if=none,id=root,format=raw,readonly=on,file={}", file("root.erofs"));
    // Changes of the guest go into a temporary file; the template is not modified.
    let layer = format!("if=none,id=layer,format=raw,snapshot=on,file={}", file("layer.ext4"));
    [
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
        append,
        "-drive",
        &root,
        "-device",
        "virtio-blk-device,drive=root",
        "-drive",
        &layer,
        "-device",
        "virtio-blk-device,drive=layer",
        // A network card without a network: the guest agent brings it up.
        "-netdev",
        "hubport,id=network,hubid=0",
        "-device",
        "virtio-net-device,netdev=network",
        "-chardev",
        "null,id=agent",
        "-device",
        "virtio-serial-device",
        "-device",
        "virtserialport,chardev=agent,name=skep.agent",
    ]
    .map(str::to_owned)
    .to_vec()
}

/// The kernel command line of the bake: an emulated guest that calibrates its own clock may hang.
fn kernel_command_line(engine: &dyn Engine, memory_mb: u64) -> Result<String, Box<dyn Error>> {
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
        delta: None,
    };
    let purpose = Purpose::Bake;
    let order = LaunchSpec {
        vcpus: 1,
        memory_mb,
        mac: [0; 6],
        disk_limits: DiskLimits::default(),
        purpose,
        descriptors,
    };
    let mut arguments = engine.command(order)?.arguments.into_iter();
    let append = arguments.by_ref().skip_while(|word| word != "-append").nth(1);
    Ok(append.ok_or("the engine boots no kernel")?)
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
