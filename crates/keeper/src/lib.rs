//! The one privileged process: listener, namespaces, taps, cgroups, jails and VMMs.
//!
//! It parses nothing that callers send. What it is asked comes typed from the *server*, its child without privileges, and
//! is checked here again. When the server dies it is started again, and when we do, the next keeper takes over: VMs outlive
//! both, see `adopt`.

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
