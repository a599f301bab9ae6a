//! Boots the guest of a bake in a jail and an empty network namespace, and saves its state once it is idle.

use std::{
    fs::File,
    io::{self, Seek},
    os::{
        fd::OwnedFd,
        unix::{
            fs::fchown,
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use skep_api::templates::GuestSize;
use skep_channel::Guest;
use skep_engine::{Descriptors, DiskLimits, Engine, LaunchSpec, Purpose, VmmCommand};
use skep_jail::{
    CgroupLimits, Confinement, Handles, Jail, Jailed, ProcessSpec, ResourceLimits, StderrPipe, oom_score_adj,
};
use skep_network::{Network, Subnet};
use skep_template::{TemplateFile, create_ram};
use tokio::io::AsyncReadExt;

use crate::{
    Error,
    environment::{BakeEnvironment, jail_failed, network_failed},
};

/// Time limits of successive boot attempts. A cold boot takes 2 to 5 s in an emulator, and many times that under load.
/// An emulated guest may also hang forever if its kernel lost the first timer ticks, so that only another boot helps.
const BOOT_TIMEOUTS: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(120), Duration::from_secs(300)];
/// Failed step of a guest that never connected its channel.
const BOOT: &str = "boot";
/// Failed step of a guest that connected its channel.
const SETTLE: &str = "settle";
/// Time for the guest to notice that a connection was closed.
const DISCONNECT_DELAY: Duration = Duration::from_secs(1);
const VMM_EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the console output in an error.
const CONSOLE_BYTES: usize = 8000;
/// Memory of the VMM beside the guest's, in MiB. Generous: the cgroup limit is a last resort, not a budget.
const VMM_MB: u64 = 512;
/// Outside the range of the VMs' uids, which begins at `0x7000_0000`.
const BAKE_UID: u32 = 0x7100_0000;

/// Boots the guest and saves memory and device state beside the other files in `work`. `write_layer` writes its disk layer,
/// again for each attempt. Returns the protocol of its agent.
pub(crate) fn boot_and_save(
    engine: &dyn Engine,
    binary: &Path,
    place: &BakeEnvironment,
    work: &Path,
    size: GuestSize,
    write_layer: &dyn Fn() -> Result<(), Error>,
) -> Result<u32, Error> {
    write_layer()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("runtime of the bake"))?;
    let [retried @ .., last] = BOOT_TIMEOUTS;
    for patience in retried {
        match runtime.block_on(boot(engine, binary, work, place, size, patience)) {
            Err(Error::Guest { what: BOOT, cause, .. }) => {
                tracing::warn!(cause, "the guest of the bake did not boot within {patience:?}: {cause}");
                place.clear_boot()?;
                // The guest may have mounted it.
                write_layer()?;
            }
            outcome => return outcome,
        }
    }
    runtime.block_on(boot(engine, binary, work, place, size, last))
}

async fn boot(
    engine: &dyn Engine,
    binary: &Path,
    work: &Path,
    place: &BakeEnvironment,
    size: GuestSize,
    patience: Duration,
) -> Result<u32, Error> {
    let network = Network::create(place.name(), Subnet::default()).await.map_err(network_failed)?;
    let tap = network.add_tap().await.map_err(network_failed)?;
    let ram = create_ram(size.memory_mb)?;
    let [monitor, agent, console] =
        ["monitor", "agent", "console"].map(|name| ConnectedSocket::open(place.socket(name)));
    let (monitor, agent, console) = (monitor?, agent?, console?);
    let command = engine.command(LaunchSpec {
        vcpus: size.vcpus,
        memory_mb: size.memory_mb,
        mac: tap.port.mac,
        disk_limits: DiskLimits::default(),
        purpose: Purpose::Bake,
        descriptors: descriptors(work, &ram, tap.fd, [monitor.listener, agent.listener, console.listener])?,
    })?;
    let (order, descriptors) = order(command, size.disk_mb);
    let limits = CgroupLimits {
        memory_bytes: (size.memory_mb + VMM_MB) << 20,
        pids: 64,
        cpu_weight: 100,
        cpu_percent: None,
    };
    let group = place.group("vmm", &limits)?;
    let cgroup_doors = group.open_procs_files().map_err(jail_failed)?;
    let (stderr_pipe, stderr) = StderrPipe::create().map_err(jail_failed)?;
    let handles = Handles { cgroup_procs_files: cgroup_doors, stderr: Some(stderr), inherited: descriptors };
    let jailed = skep_jail::spawn(binary, &order, handles).map_err(jail_failed)?;
    let rest = settle_and_save(engine, [monitor.stream, agent.stream, console.stream], work, patience).await;
    let ended = wait_for_end(jailed, rest.is_ok());
    let removed = group.remove().map_err(jail_failed);
    // The cgroup is empty, so nothing writes to the pipe any more and the output is complete.
    let protocol = rest.map_err(|error| error.with_vmm_output(&stderr_pipe.read(CONSOLE_BYTES as u64)))?;
    ended.and(removed)?;
    // Files in an image directory belong to root.
    let layer = File::open(work.join(TemplateFile::Layer.file_name()));
    layer.and_then(|layer| fchown(&layer, Some(0), Some(0))).map_err(Error::io("layer"))?;
    let mut file = File::create(work.join(TemplateFile::Ram.file_name())).map_err(Error::io("ram"))?;
    copy_memory(ram, &mut file).map_err(Error::io("ram"))?;
    Ok(protocol)
}

fn descriptors(
    work: &Path,
    ram: &OwnedFd,
    tap: OwnedFd,
    [monitor, agent, console]: [OwnedFd; 3],
) -> Result<Descriptors, Error> {
    let open = |part: TemplateFile| {
        let path = work.join(part.file_name());
        File::open(&path).map(OwnedFd::from).map_err(Error::io(path.display()))
    };
    let layer = File::options().read(true).write(true).open(work.join(TemplateFile::Layer.file_name()));
    let layer = layer.map_err(Error::io("layer"))?;
    fchown(&layer, Some(BAKE_UID), Some(BAKE_UID)).map_err(Error::io("layer"))?;
    Ok(Descriptors {
        monitor,
        agent,
        console,
        tap,
        ram: ram.try_clone().map_err(Error::io("memory file"))?,
        kernel: open(TemplateFile::Kernel)?,
        initrd: open(TemplateFile::Initrd)?,
        root: open(TemplateFile::Root)?,
        layer: layer.into(),
        delta: None,
    })
}

fn order(command: VmmCommand, disk_mb: u64) -> (ProcessSpec, Vec<OwnedFd>) {
    let VmmCommand { program, arguments, environment, descriptors, needs_kvm } = command;
    let order = ProcessSpec {
        program,
        arguments,
        environment,
        uid: BAKE_UID,
        gid: BAKE_UID,
        groups: Vec::new(),
        oom_score_adj: oom_score_adj::VMM,
        confinement: Confinement::Jail(Jail {
            hostname: "skep-bake".to_owned(),
            devices: if needs_kvm { vec!["/dev/kvm".into()] } else { Vec::new() },
            limits: ResourceLimits { open_files: 64, file_bytes: disk_mb << 20, processes: 64 },
        }),
    };
    (order, descriptors)
}

/// Waits until the guest has settled and saves its state. The VMM then ends by itself. Returns the protocol of the agent.
async fn settle_and_save(
    engine: &dyn Engine,
    [monitor, agent, console]: [UnixStream; 3],
    work: &Path,
    patience: Duration,
) -> Result<u32, Error> {
    let stream = |stream: UnixStream| {
        stream
            .set_nonblocking(true)
            .and_then(|()| tokio::net::UnixStream::from_std(stream))
            .map_err(Error::io("socket"))
    };
    let console_tail = ConsoleTail::default();
    tokio::spawn(console_tail.clone().record(stream(console)?));
    let machine = engine.driver().attach(stream(monitor)?).await?;
    // Kept open until the guest is saved, otherwise each restored VM would have to process a disconnect and a new
    // connection.
    let held = agent.try_clone().map_err(Error::io("socket"))?;
    let agent = stream(agent)?;
    let failed = |what, error: skep_channel::Error| match error {
        skep_channel::Error::UnsupportedProtocol(source) => Error::AgentProtocol(source),
        other => Error::Guest { what, cause: other.to_string(), console: console_tail.text() },
    };
    let guest = Guest::connect(agent, patience).await.map_err(|error| failed(BOOT, error))?;
    let protocol = guest.check_protocol().await.map_err(|error| failed(SETTLE, error))?;
    guest.settle().await.map_err(|error| failed(SETTLE, error))?;
    // The guest must process the end of this connection before it is saved, not after each restore.
    drop(guest);
    tokio::time::sleep(DISCONNECT_DELAY).await;
    let state = File::create(work.join(TemplateFile::State.file_name())).map_err(Error::io("state"))?;
    machine.save(state.into()).await?;
    drop(held);
    Ok(protocol)
}

fn wait_for_end(jailed: Jailed, expected: bool) -> Result<(), Error> {
    if !expected || !jailed.wait(VMM_EXIT_TIMEOUT).map_err(jail_failed)? {
        jailed.kill().map_err(jail_failed)?;
        jailed.wait(VMM_EXIT_TIMEOUT).map_err(jail_failed)?;
    }
    jailed.reap();
    Ok(())
}

/// Copies the guest's memory, which is no longer mapped, and keeps it sparse.
fn copy_memory(ram: OwnedFd, file: &mut File) -> io::Result<()> {
    let mut ram = File::from(ram);
    ram.rewind()?;
    let bytes = ram.metadata()?.len();
    file.set_len(bytes)?;
    let mut page = vec![0; 4096];
    for at in (0..bytes).step_by(page.len()) {
        io::Read::read_exact(&mut ram, &mut page)?;
        if page.iter().any(|byte| *byte != 0) {
            std::os::unix::fs::FileExt::write_all_at(file, &page, at)?;
        }
    }
    file.sync_all()
}

/// A listening socket for the VMM, with a stream that is connected to it before the VMM exists.
struct ConnectedSocket {
    listener: OwnedFd,
    stream: UnixStream,
}

impl ConnectedSocket {
    fn open(path: PathBuf) -> Result<Self, Error> {
        let make = || {
            let address = SocketAddr::from_pathname(&path)?;
            let listener = UnixListener::bind_addr(&address)?;
            Ok(Self { stream: UnixStream::connect_addr(&address)?, listener: listener.into() })
        };
        make().map_err(Error::io(path.display()))
    }
}

/// The last output on the guest's console, for errors.
#[derive(Clone, Default)]
struct ConsoleTail(Arc<Mutex<Vec<u8>>>);

impl ConsoleTail {
    async fn record(self, mut stream: tokio::net::UnixStream) {
        let mut block = vec![0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut block).await {
            let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend_from_slice(&block[..read]);
            let surplus = tail.len().saturating_sub(CONSOLE_BYTES);
            tail.drain(..surplus);
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}
