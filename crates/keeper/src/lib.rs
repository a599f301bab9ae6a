//! The only privileged process. It owns the listening sockets, namespaces, taps, cgroups, jails and VMMs.
//!
//! The keeper parses nothing that API callers send. It receives typed requests from the *server*, its unprivileged
//! child, and validates them again. It restarts a server that dies. VMs outlive the server and the keeper: the next
//! keeper takes them over, see `adopt`.

mod admin_key;
mod adopt;
mod capacity;
mod claims;
mod clean;
mod data_dir;
mod error;
mod footprint;
mod helpers;
mod keep;
mod layer;
mod lives;
mod lock;
mod order;
mod pair_files;
mod process;
mod records;
mod server_process;
mod serving;
mod sockets;
mod stop;
mod user;
mod vmm;
mod vmms;

pub use clean::clean;
pub use data_dir::DataDir;
pub use error::Error;
pub use footprint::{Footprint, has_others};
pub use keep::run;
pub use lock::{Hold, Holder, hold, holder};
pub use order::{
    Configured, HelperOrder, KeeperOrder, OpenTemplate, Reread, Started, SwarmOrder, Templates, VmLimits,
};
pub use pair_files::PairFiles;
pub use user::User;
