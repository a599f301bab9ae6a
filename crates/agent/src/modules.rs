//! Loads kernel modules from the initramfs.

use std::{
    fs::{self, File},
    path::Path,
};

use rustix::{io::Errno, system::finit_module};

use crate::error::{Error, StepContext};

const MODULES: &str = "/modules";

/// Loads each module listed in `/modules/order`, in this order, and removes the files to free their memory.
pub(crate) fn load_all() -> Result<(), Error> {
    let folder = Path::new(MODULES);
    let order = fs::read_to_string(folder.join("order")).context("read /modules/order")?;
    for name in order.lines().map(str::trim).filter(|name| !name.is_empty()) {
        let file = File::open(folder.join(name)).context(format!("open the module {name}"))?;
        match finit_module(&file, c"", 0) {
            // Built into this kernel or loaded already.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(Error::step(format!("load the module {name}"), error)),
        }
    }
    fs::remove_dir_all(folder).context("remove /modules")
}
