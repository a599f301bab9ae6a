//! What a keeper is started with.

use std::{net::SocketAddr, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use skep_api::{Failure, swarm::EngineReport};
use skep_engine::Launcher;
use skep_jail::UidRange;
use skep_network::Subnet;

use crate::PairFiles;

/// What a keeper is started with.
pub struct KeeperOrder {
    /// The data directory; made where it is missing.
    pub data_dir: PathBuf,
    /// Where the HTTP service listens.
    pub listen: Vec<SocketAddr>,
    /// The user that the server runs as. `None`: the owner of the first root; where that is root, or there is none yet,
    /// the system user `skep`.
    pub user: Option<String>,
    /// The first root, whose owner may be the server's user.
    pub first_root: Option<PathBuf>,
    /// Our own binary, best as `/proc/self/exe`, which stays the one that runs when the file is replaced: its `stage`
    /// argument runs `skep_jail::stage::main`.
    pub binary: PathBuf,
    /// The arguments that make it the server. Its end of the keeper's socket is descriptor 3.
    pub server_arguments: Vec<String>,
    /// The server's environment, whole.
    pub server_environment: Vec<(String, String)>,
    /// What the server is started with first.
    pub configured: Configured,
    /// Reads the settings again for a restart, and says why they cannot start a server, or which of them a restart does not
    /// change.
    pub reread: Reread,
    /// How long the server may take to finish the requests under way when it is stopped.
    pub grace: Duration,
    /// What VMs need, or why there are none on this machine.
    pub swarm: Result<SwarmOrder, String>,
}

/// Reads the settings again. Blocks.
pub type Reread = Arc<dyn Fn() -> Result<Configured, String> + Send + Sync>;

/// What a server is started with, and may be another at a restart.
#[derive(Clone)]
pub struct Configured {
    /// Handed to the server in the first packet, below 60 KiB as JSON.
    pub settings: serde_json::Value,
    /// The certificate of the HTTP service. `None`: the server has its own, or none.
    pub tls: Option<Arc<PairFiles>>,
    /// What starts commands of callers.
    pub commands_helper: HelperOrder,
    /// What starts git.
    pub git_helper: HelperOrder,
}

/// What a helper is started with: the process that starts programs for callers. It runs as the server's user.
#[derive(Debug, Clone)]
pub struct HelperOrder {
    /// The arguments that make our own binary it. Its end of the server's stream is descriptor 3. Where it may make control
    /// groups, `--groups` and their folder follow.
    pub arguments: Vec<String>,
    /// Its environment, whole.
    pub environment: Vec<(String, String)>,
    /// Folders that it finds empty, in memory.
    pub scratch: Vec<PathBuf>,
    /// Files and folders from which programs and libraries may be executed; every other mount is `noexec`. `None`: files
    /// are executed wherever its user may.
    pub executable: Option<Vec<PathBuf>>,
    /// Memory that it and all programs may use together, in bytes.
    pub memory_bytes: u64,
    /// Processes and threads that they may be.
    pub pids: u64,
}

/// What VMs need.
pub struct SwarmOrder {
    /// Where templates come from.
    pub templates: Arc<dyn Templates>,
    /// What writes a VMM's command.
    pub launcher: Arc<dyn Launcher>,
    /// The engine and why it was chosen.
    pub engine: EngineReport,
    /// The addresses of the VMs.
    pub subnet: Subnet,
    /// User ids for VMMs. Data directories on one machine share the range.
    pub uids: UidRange,
    /// What one VM may use.
    pub limits: VmLimits,
    /// VMs at the same time. `None`: as many as memory and disk hold, 1000 at the most.
    pub max_vms: Option<u32>,
    /// Memory for VMs, in MiB. `None`: 80 % of what is available at the start.
    pub memory_mb: Option<u64>,
}

/// What one VM may use, and what is counted for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmLimits {
    /// Memory of the guest that capacity is counted with, in MiB: the largest template's.
    pub guest_memory_mb: u64,
    /// The private disk layer, in MiB.
    pub layer_mb: u64,
    /// Memory of the VMM besides the guest's, in MiB, by [`Launcher::overhead_mb`]. With the guest's it is the limit of its
    /// cgroup and what capacity counts.
    pub overhead_mb: u64,
    /// Processes and threads of the VMM.
    pub pids: u64,
    /// Its weight against other processes; 100 is ordinary.
    pub cpu_weight: u64,
    /// The processors of the VMM beside those of its guest, in percent of one: its own thread serves disk, network and
    /// console. With the guest's it is the most that it may have, however idle the machine is.
    pub cpu_overhead_percent: u64,
}

impl VmLimits {
    /// The limits of VMs whose VMMs take so much memory besides their guests', in MiB.
    pub fn with_overhead(overhead_mb: u64) -> Self {
        Self {
            guest_memory_mb: 128,
            layer_mb: 2048,
            overhead_mb,
            pids: 64,
            cpu_weight: 100,
            cpu_overhead_percent: 50,
        }
    }
}

/// Where templates come from.
#[warn(missing_docs)]
pub trait Templates: Send + Sync {
    /// Opens a template, whether or not it was damaged since it was loaded. Blocks; may be called from several threads at
    /// once.
    ///
    /// # Errors
    /// There is none of that name.
    fn open(&self, name: &str) -> Result<OpenTemplate, Failure>;

    /// Whether an edition of a template is still what it was when it was loaded. One that was damaged once stays so, and
    /// another takes its place. Blocks; asked for each VM more than once, so it is to be cheap where nothing happened.
    ///
    /// # Errors
    /// It is damaged.
    fn check(&self, name: &str, edition: u64) -> Result<(), Failure>;
}

/// One use of a template. Every descriptor but `ram` is opened anew for each: they have a position.
#[derive(Debug)]
pub struct OpenTemplate {
    /// The hash of its inputs.
    pub key: String,
    /// Counts what had the name before and was found damaged.
    pub edition: u64,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// Guest memory: a sealed memory file that all VMs of the template share.
    pub ram: OwnedFd,
    /// The kernel, read-only and readable for everybody.
    pub kernel: OwnedFd,
    /// The initial ramdisk, read-only and readable for everybody.
    pub initrd: OwnedFd,
    /// The shared root file system, read-only.
    pub root: OwnedFd,
    /// The device state, read-only, at its beginning.
    pub state: OwnedFd,
    /// The private disk layer at rest, to be copied.
    pub layer: OwnedFd,
}

/// What is known once the address is taken, shortly before the server runs.
#[derive(Debug)]
pub struct Started {
    /// The addresses, with the ports that were given for port 0.
    pub addresses: Vec<SocketAddr>,
    /// Where the admin key lies.
    pub admin_key_file: PathBuf,
    /// The admin key, at the first start only: to be printed once.
    pub new_admin_key: Option<String>,
    /// Whom the server runs as.
    pub user: crate::User,
    /// Why there are no VMs, where there are none.
    pub no_swarm: Option<String>,
}
