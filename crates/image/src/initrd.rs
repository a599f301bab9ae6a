//! The initial ramdisk: the agent as `/init` and the modules that it loads, as an uncompressed cpio archive ("newc",
//! the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use cpio::newc::{Builder, trailer};

use crate::{
    Error,
    kernel::{Kernel, MODULES, OVERLAY},
};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

pub(crate) fn write(to: &Path, agent: &[u8], kernel: &Kernel) -> Result<(), Error> {
    let mut entries: Vec<(String, u32, Vec<u8>)> =
        ["dev", "proc", "sys", "modules", "lower", "layer", "root"]
            .map(|name| (name.to_owned(), DIRECTORY, Vec::new()))
            .into();
    entries.push(("init".to_owned(), PROGRAM, agent.to_vec()));
    let mut order = String::new();
    for name in MODULES.into_iter().chain([OVERLAY]) {
        let path = kernel.module(name);
        match fs::read(&path) {
            Ok(module) => entries.push((format!("modules/{name}.ko"), FILE, module)),
            // The module is built into this kernel.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io(path.display())(error)),
        }
        order.push_str(&format!("{name}.ko\n"));
    }
    entries.push(("modules/order".to_owned(), FILE, order.into_bytes()));
    archive(to, &entries).map_err(Error::io(to.display()))
}

fn archive(to: &Path, entries: &[(String, u32, Vec<u8>)]) -> io::Result<()> {
    let mut out = fs::File::create(to)?;
    for (number, (name, mode, content)) in (1..).zip(entries) {
        let size = u32::try_from(content.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let mut writer = Builder::new(name).ino(number).mode(*mode).nlink(1).write(&mut out, size);
        writer.write_all(content)?;
        writer.finish()?;
    }
    trailer(&mut out)?;
    out.sync_all()
}
