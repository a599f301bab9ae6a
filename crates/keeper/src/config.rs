//! Configuration of the keeper, and the [`Templates`] that it restores VMs from.

use std::{
    collections::BTreeSet, fs::File, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, sync::Arc,
    time::Duration,
};

use skep_api::{Failure, TemplateId, swarm::EngineReport, templates::GuestSize};
use skep_engine::{Delta, DiskLimits, Launcher};
use skep_jail::UidRange;
use skep_keeper_protocol::{StorePurpose, TemplateStatus};
use skep_network::Subnet;

use crate::{FileId, MemoryAdmission, TlsFiles};

pub struct KeeperConfig {
    /// The data directory. Created if missing.
    pub data_dir: PathBuf,
    /// Addresses of the HTTP service.
    pub listen: Vec<SocketAddr>,
    /// The user that the server runs as. `None`: the owner of the first root, or the system user `skep` if that is root
    /// or does not exist yet. Without root it is always the keeper's own.
    pub user: Option<String>,
    /// The first root, for the default of `user`.
    pub first_root: Option<PathBuf>,
    /// The binary of this process, preferably `/proc/self/exe`, which stays the running one when the file is replaced.
    /// Its `stage` argument runs `skep_jail::stage::main`.
    pub binary: PathBuf,
    /// The arguments that run `binary` as the server. Descriptor 3 is its end of the keeper's socket.
    pub server_arguments: Vec<String>,
    /// The complete environment of the server: nothing is inherited.
    pub server_environment: Vec<(String, String)>,
    /// Configuration of the first server.
    pub server_config: ServerConfig,
    /// Reads the settings again for a restart. Fails if a server cannot be started with them, or if a setting changed
    /// that a restart does not apply.
    pub read_server_config: ReadServerConfig,
    /// How long the server may take to finish its requests when it is stopped.
    pub grace: Duration,
    /// Configuration of VMs, or why this machine has none.
    pub swarm: Result<SwarmConfig, String>,
}

/// Reads the settings again. Blocks.
pub type ReadServerConfig = Arc<dyn Fn() -> Result<ServerConfig, String> + Send + Sync>;

/// The configuration of one server, which a restart may change.
#[derive(Clone)]
pub struct ServerConfig {
    /// Sent to the server in the first packet; less than 60 KiB as JSON.
    pub settings: serde_json::Value,
    /// The certificate of the HTTP service. `None` if the server generates one or uses none.
    pub tls: Option<Arc<TlsFiles>>,
    /// The helper that runs commands of callers.
    pub commands_helper: HelperConfig,
    pub git_helper: HelperConfig,
}

/// Configuration of a helper, the process that starts programs for callers. It runs as the server's user. A keeper
/// without root ignores all but the arguments and the environment.
#[derive(Debug, Clone)]
pub struct HelperConfig {
    /// The arguments that run `binary` as the helper. Descriptor 3 is its end of the server's stream. If it may create
    /// cgroups, `--groups` and their folder are appended.
    pub arguments: Vec<String>,
    /// The complete environment: nothing is inherited.
    pub environment: Vec<(String, String)>,
    /// Folders over which an empty tmpfs is mounted.
    pub scratch: Vec<PathBuf>,
    /// Files and folders from which programs and libraries may be executed; every other mount is `noexec`. `None`: no
    /// restriction.
    pub executable: Option<Vec<PathBuf>>,
    /// Memory limit of the helper and all its programs together, in bytes.
    pub memory_bytes: u64,
    /// Limit of processes and threads, likewise together.
    pub pids: u64,
}

/// Configuration of the egress process.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// The arguments that run `binary` as the egress process. Its descriptors are, from 3: the socket that keepers
    /// connect to, the listeners for connections, for DNS over UDP and for DNS over TCP, and the file of names.
    pub arguments: Vec<String>,
    /// The name servers that it asks. Empty: those of /etc/resolv.conf, whenever that changes.
    pub name_servers: Vec<SocketAddr>,
    /// Memory limit, in bytes.
    pub memory_bytes: u64,
}

pub struct SwarmConfig {
    pub templates: Arc<dyn Templates>,
    /// Builds the command line of a VMM.
    pub launcher: Arc<dyn Launcher>,
    /// The engine and why it was selected.
    pub engine: EngineReport,
    pub subnet: Subnet,
    /// `None`: no VM reaches anything outside.
    pub egress: Option<EgressConfig>,
    /// User ids for VMMs. All data directories of a machine share the range.
    pub uids: UidRange,
    pub limits: VmLimits,
    /// Limit of concurrent VMs. `None`: as many as can be promised their memory, at most 1000.
    pub max_vms: Option<u32>,
    /// Memory for all VMs, in MiB. `None`: 80 % of the memory that is available at the start.
    pub memory_mb: Option<u64>,
    /// How many times that memory VMs may be promised in total: few use all of theirs. At least 1.
    pub memory_overcommit: f64,
    /// Whether a VM is ended before the machine has no memory left. If not, the kernel kills a process then.
    pub memory_guard: bool,
}

/// The limits of one VM, and what capacity planning assumes per VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmLimits {
    /// Guest memory that capacity planning assumes per VM, in MiB: that of `base`.
    pub guest_memory_mb: u64,
    /// Memory of the VMM in addition to the guest's, in MiB, from [`Launcher::overhead_mb`]. The sum of both is the
    /// limit of the cgroup and what capacity planning assumes.
    pub overhead_mb: u64,
    /// Processes and threads of the VMM.
    pub pids: u64,
    /// CPU weight of its cgroup for each virtual processor; the default of the kernel is 100.
    pub cpu_weight: u64,
    /// CPU time of the VMM in addition to the guest's, in percent of one CPU: a thread of the VMM serves disk, network
    /// and console. The sum of both is the hard limit of the cgroup.
    pub cpu_overhead_percent: u64,
    pub disk: DiskLimits,
}

impl VmLimits {
    /// The memory that a VM may take, in MiB: its guest's and the overhead. It is promised to the VM as long as it runs.
    pub(crate) fn promise_mb(&self) -> u64 {
        self.guest_memory_mb + self.overhead_mb
    }

    /// The default limits, for this memory of a guest and overhead of its VMM, in MiB. Disks are unlimited.
    pub fn new(guest_memory_mb: u64, overhead_mb: u64) -> Self {
        let disk = DiskLimits::default();
        Self { guest_memory_mb, overhead_mb, pids: 64, cpu_weight: 100, cpu_overhead_percent: 50, disk }
    }
}

/// Checks whether the machine has the memory and the disk space for the build of a template. Blocks.
pub type AdmitBuild = Box<dyn Fn() -> Result<(), Failure> + Send + Sync>;

/// Admits a load of this many bytes into memory files. The admission is kept until they are loaded.
pub type AdmitLoad<'a> = dyn Fn(u64) -> Result<MemoryAdmission, Failure> + 'a;

/// Source of templates.
#[warn(missing_docs)]
pub trait Templates: Send + Sync {
    /// Opens a template without checking it for damage. Blocks. May be called concurrently. If the template is not in memory,
    /// `admit` gets what its files take there before they are loaded. `base` may not be in memory either, if the keeper was
    /// started while VMs of an earlier one ran.
    ///
    /// # Errors
    /// There is no such template, it cannot be used now, or `admit` refuses; the message says why.
    fn open(&self, template: TemplateId, admit: &AdmitLoad<'_>) -> Result<OpenTemplate, Failure>;

    /// Checks that the files of an edition have not changed since it was loaded. A damaged edition stays damaged and is
    /// replaced by a new one. Blocks. Called several times per VM, so it must be cheap for unchanged files.
    ///
    /// # Errors
    /// The edition is damaged.
    fn check(&self, template: TemplateId, edition: u64) -> Result<(), Failure>;

    /// Begins with the builds, those that earlier keepers left included. Called once. A build that is not admitted waits.
    fn begin_builds(&self, admit: AdmitBuild);

    /// Queues the build of a template from the disk of another one.
    ///
    /// # Errors
    /// The parent is unknown or cannot be used, the size is out of range, or too many builds are queued.
    fn build(&self, template: TemplateId, parent: TemplateId, size: GuestSize) -> Result<(), Failure>;

    /// Queues the boot of a guest from the disk of a snapshot, whose memory may be unusable. VMs start from the result, which
    /// is not in the list and goes a minute after the last VM that needs it.
    ///
    /// # Errors
    /// There is no such snapshot, or too many builds are queued.
    fn boot_disk(&self, template: TemplateId, snapshot: TemplateId) -> Result<(), Failure>;

    /// The state of a template, also of one that is not in the list. `None` if it is unknown.
    fn status(&self, template: TemplateId) -> Option<TemplateStatus>;

    /// Stores a capture on disk, as a template with this id. Blocks until it is written.
    ///
    /// # Errors
    /// The disk is full, or the template that it begins with is not on disk any more. Nothing is left behind then.
    fn store(&self, template: TemplateId, captured: CapturedFiles<'_>) -> Result<TemplateStatus, Failure>;

    /// Checks that a VM can continue from a capture of one that was booted from the template with this key: the VMM of that
    /// one may be of an engine that is not installed any more. Blocks. Called for each VM that is launched from a capture.
    ///
    /// # Errors
    /// It cannot; the message says why.
    fn check_copy(&self, origin: TemplateId, key: &str) -> Result<(), Failure>;

    /// All templates, in the order of their ids: those that exist, are being built, or failed since this keeper was started.
    fn list(&self) -> Vec<TemplateStatus>;

    /// Removes a template with its files, or ends its build. Blocks.
    ///
    /// # Errors
    /// It is unknown, `base`, or another template's parent.
    fn remove(&self, template: TemplateId) -> Result<(), Failure>;

    /// What the memory files of the loaded templates take, in bytes.
    fn memory_bytes(&self) -> u64;

    /// The memory files with the pages of the loaded snapshots, which [`Self::memory_bytes`] counts. VMs of a snapshot hold
    /// them too, also after it was dropped.
    fn deltas(&self) -> Vec<FileId>;

    /// Drops the memory files of templates that none of the VMs has used for a minute. Called every few seconds with the
    /// templates of all VMs. A template that is dropped is loaded again at its next use.
    fn unload_unused(&self, in_use: &BTreeSet<TemplateId>);
}

/// The open files of a template for one VM. All descriptors but `ram` are opened anew for each VM, because file
/// positions would be shared otherwise.
#[derive(Debug)]
pub struct OpenTemplate {
    /// The hash of its inputs.
    pub key: String,
    /// Starts at 0 and grows by one each time the template was found damaged and replaced.
    pub edition: u64,
    pub vcpus: u32,
    /// Memory of the guest, in MiB.
    pub memory_mb: u64,
    /// Guest memory: a sealed memory file that all VMs of the template share.
    pub ram: OwnedFd,
    /// The checksum of the guest memory. `None` if it is not known.
    pub ram_sha256: Option<String>,
    /// The kernel, read-only and readable by every user.
    pub kernel: OwnedFd,
    /// The initial ramdisk, read-only and readable by every user.
    pub initrd: OwnedFd,
    /// The shared root file system, read-only.
    pub root: OwnedFd,
    /// The saved device state, read-only, positioned at the beginning.
    pub state: OwnedFd,
    /// The private disk layer, to be copied for each VM.
    pub layer: OwnedFd,
    /// What a snapshot changed in the guest memory. `None` for a baked template.
    pub delta: Option<Delta>,
    /// For a VM that was paused to disk: the template that it was restored from at first.
    pub origin: Option<Origin>,
}

/// The template on disk whose files captures of a VM share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub template: TemplateId,
    /// The hash of its inputs.
    pub key: String,
}

/// A capture of a VM, to be stored as a template.
#[derive(Debug)]
pub struct CapturedFiles<'a> {
    /// The template that the VM was restored from, whose files the new one shares.
    pub origin: TemplateId,
    /// The hash of the inputs of that template.
    pub origin_key: &'a str,
    /// The checksum of the guest memory of that template. `None` if it is not known.
    pub origin_ram: Option<&'a str>,
    pub purpose: StorePurpose,
    pub state: &'a File,
    pub delta: &'a File,
    pub pages: &'a File,
    /// A file without a name, on the file system of the data directory.
    pub layer: &'a File,
}

/// Reported to the caller after the addresses are bound and before the server runs.
#[derive(Debug)]
pub struct StartReport {
    /// The bound addresses, with the actual port in place of port 0.
    pub addresses: Vec<SocketAddr>,
    pub admin_key_file: PathBuf,
    /// The admin key, at the first start only, to be printed once.
    pub new_admin_key: Option<String>,
    /// The user that the server runs as.
    pub user: crate::User,
    /// Why this machine has no VMs. `None` if it has.
    pub no_swarm: Option<String>,
}
