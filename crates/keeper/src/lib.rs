//! The process that starts all others, and the only privileged one. It owns the listening sockets, namespaces, taps,
//! cgroups, jails and VMMs.
//!
//! The keeper parses nothing that API callers send. It receives typed requests from the *server*, its unprivileged
//! child, and validates them again. It restarts a server that dies. VMs outlive the server and the keeper: the next
//! keeper takes them over, see `adopt`. Without root there are no VMs, see `privileges`.

mod admin_key;
mod adopt;
mod capacity;
mod capture;
mod cleanup;
mod config;
mod data_dir;
mod disk_layer;
mod egress;
mod error;
mod footprint;
mod helpers;
mod listeners;
mod lock;
mod memory;
mod privileges;
mod process_id;
mod records;
mod run;
mod server_process;
mod service_manager;
mod serving;
mod sockets;
mod stop_signal;
mod succession;
mod tls_files;
mod uid_blocks;
mod user;
mod vmm;
mod vmms;

pub use admin_key::replace_admin_key;
pub use adopt::has_running_vms;
pub use cleanup::clean_data_dir;
pub use config::{
    AdmitBuild, AdmitLoad, CapturedFiles, EgressConfig, HelperConfig, KeeperConfig, OpenTemplate, Origin,
    ReadServerConfig, ServerConfig, StartReport, SwarmConfig, Templates, VmLimits,
};
pub use data_dir::DataDir;
pub use disk_layer::FileId;
pub use error::Error;
pub use footprint::{Footprint, other_data_dirs_have_resources, template_keys_of_vms};
pub use lock::{Holder, LockGuard, holder, lock_data_dir};
pub use memory::MemoryAdmission;
pub use run::run;
pub use tls_files::TlsFiles;
pub use user::User;
