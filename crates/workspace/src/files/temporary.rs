//! A new file that nobody sees under its name before it is whole and on the disk.

use std::{
    borrow::Borrow,
    ffi::{OsStr, OsString},
    fs::File,
    io,
};

use rustix::{
    fs::{
        AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, fstat, openat, renameat_with,
        unlinkat,
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

    /// Gives it mode and owner of the file that it replaces, or this mode; setuid and setgid of neither. Whether that
    /// changed anything.
    pub(super) fn dress(&self, replaced: Option<&Stat>, mode: Option<u32>, default: u32) -> io::Result<bool> {
        let own = fstat(&self.file)?;
        let owner =
            replaced.map(|old| (old.st_uid, old.st_gid)).filter(|old| *old != (own.st_uid, own.st_gid));
        if let Some((user, group)) = owner {
            fchown(&self.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        let kept = replaced.map(|old| old.st_mode);
        let mode = mode.or(kept).unwrap_or(default) & GIVEN_BITS;
        // A change of owner may have taken bits away.
        if owner.is_none() && Mode::from_raw_mode(own.st_mode).bits() == mode {
            return Ok(false);
        }
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        Ok(true)
    }

    /// Brings content, mode and owner to the disk: [`Self::place`] shows only what is there already.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Puts it in its place, so that no reader ever finds half of it. The caller syncs the folder afterwards.
    pub(super) fn place(&mut self, occupied: Occupied) -> io::Result<Stat> {
        let flags = match occupied {
            Occupied::Replace => RenameFlags::empty(),
            Occupied::Refuse => RenameFlags::NOREPLACE,
        };
        let slot = self.slot.borrow();
        let folder = slot.folder();
        renameat_with(folder, &self.name, folder, slot.name(), flags)?;
        self.placed = true;
        Ok(fstat(&self.file)?)
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
