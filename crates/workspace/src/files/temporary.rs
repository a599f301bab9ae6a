//! A new file that nobody sees under its name before it is whole and on the disk.

use std::{
    borrow::Borrow,
    ffi::{OsStr, OsString},
    fs::File,
    io,
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, openat, renameat_with, unlinkat,
    },
    io::Errno,
};

use crate::roots::Slot;

/// Tries at a name that nobody has.
const TRIES: u32 = 16;
/// The bits of a mode that a new file gets. Not setuid and setgid: new content must not run with the rights that somebody gave to
/// the old one, as with write(2).
const GIVEN_BITS: u32 = 0o1777;

/// A file under a name of its own, beside the one that it shall have. Dropped before that, it leaves nothing.
pub(super) struct Temporary<S: Borrow<Slot>> {
    slot: S,
    name: OsString,
    file: File,
    placed: bool,
}

/// What becomes of what has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occupied {
    Replace,
    Refuse,
}

impl<S: Borrow<Slot>> Temporary<S> {
    pub(super) fn beside(slot: S) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let name = unused_name()?;
            match openat(slot.borrow().folder(), &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(Self { slot, name, file: file.into(), placed: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Where it shall stand.
    pub(super) fn slot(&self) -> &Slot {
        self.slot.borrow()
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it mode and owner of the file that it replaces, or this mode; setuid and setgid of neither.
    pub(super) fn dress(&self, replaced: Option<&Stat>, mode: Option<u32>, default: u32) -> io::Result<()> {
        if let Some(old) = replaced {
            let own = rustix::fs::fstat(&self.file)?;
            if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid) {
                fchown(&self.file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)))?;
            }
        }
        let kept = replaced.map(|old| old.st_mode);
        let mode = mode.or(kept).unwrap_or(default) & GIVEN_BITS;
        Ok(fchmod(&self.file, Mode::from_raw_mode(mode))?)
    }

    /// Puts it in its place, so that neither a reader nor a power cut ever finds half of it.
    pub(super) fn place(mut self, occupied: Occupied) -> io::Result<File> {
        self.file.sync_all()?;
        let flags = match occupied {
            Occupied::Replace => RenameFlags::empty(),
            Occupied::Refuse => RenameFlags::NOREPLACE,
        };
        let slot = self.slot.borrow();
        let folder = slot.folder();
        renameat_with(folder, &self.name, folder, slot.name(), flags)?;
        self.placed = true;
        // The name too: it stands in the folder, which is a file of its own.
        folder.read()?.sync_all()?;
        self.file.try_clone()
    }
}

impl<S: Borrow<Slot>> Drop for Temporary<S> {
    fn drop(&mut self) {
        if !self.placed {
            // What cannot be removed has a name that says what it is.
            let _ = unlinkat(self.slot.borrow().folder(), &self.name, AtFlags::empty());
        }
    }
}

pub(super) fn unused_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(OsString::from(format!(".skep-{:016x}", u64::from_le_bytes(random))))
}

/// Whether a name is one of a file that is being written.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(".skep-"));
    rest.is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
