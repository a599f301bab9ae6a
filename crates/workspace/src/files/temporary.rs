//! A temporary file that is renamed to its final name once it is complete and synced.

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

/// How many random names are tried.
const TRIES: u32 = 16;
/// The mode bits that a new file gets. Not setuid and setgid: as with write(2), new content must not run with the
/// rights granted to the old content.
const ALLOWED_BITS: u32 = 0o1777;

/// A file with a temporary name in the folder of its target. Removed on drop unless it was persisted.
pub(super) struct Temporary<S: Borrow<Slot>> {
    slot: S,
    name: OsString,
    file: File,
    persisted: bool,
}

/// What happens if the target exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfExists {
    Replace,
    Refuse,
}

impl<S: Borrow<Slot>> Temporary<S> {
    pub(super) fn create_beside(slot: S) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let name = unused_name()?;
            match openat(slot.borrow().folder(), &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(Self { slot, name, file: file.into(), persisted: false }),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    pub(super) fn slot(&self) -> &Slot {
        self.slot.borrow()
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Sets the owner of the replaced file, and `mode`, or else the mode of the replaced file. Never sets setuid or
    /// setgid. Returns whether anything changed.
    pub(super) fn set_mode_and_owner(
        &self,
        replaced: Option<&Stat>,
        mode: Option<u32>,
        default: u32,
    ) -> io::Result<bool> {
        let own = fstat(&self.file)?;
        let owner =
            replaced.map(|old| (old.st_uid, old.st_gid)).filter(|old| *old != (own.st_uid, own.st_gid));
        if let Some((user, group)) = owner {
            fchown(&self.file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        let kept = replaced.map(|old| old.st_mode);
        let mode = mode.or(kept).unwrap_or(default) & ALLOWED_BITS;
        // A change of owner may have cleared bits.
        if owner.is_none() && Mode::from_raw_mode(own.st_mode).bits() == mode {
            return Ok(false);
        }
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        Ok(true)
    }

    /// Syncs content, mode and owner, so that [`Self::persist`] publishes only data that is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Renames the file to its final name atomically. The caller syncs the folder afterwards.
    pub(super) fn persist(&mut self, occupied: IfExists) -> io::Result<Stat> {
        let flags = match occupied {
            IfExists::Replace => RenameFlags::empty(),
            IfExists::Refuse => RenameFlags::NOREPLACE,
        };
        let slot = self.slot.borrow();
        let folder = slot.folder();
        renameat_with(folder, &self.name, folder, slot.name(), flags)?;
        self.persisted = true;
        Ok(fstat(&self.file)?)
    }
}

impl<S: Borrow<Slot>> Drop for Temporary<S> {
    fn drop(&mut self) {
        if !self.persisted {
            // If this fails, the name shows that the file is temporary.
            let _ = unlinkat(self.slot.borrow().folder(), &self.name, AtFlags::empty());
        }
    }
}

pub(super) fn unused_name() -> io::Result<OsString> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(OsString::from(format!(".skep-{:016x}", u64::from_le_bytes(random))))
}

/// Whether this is the name of a temporary file.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(".skep-"));
    rest.is_some_and(|rest| rest.len() == 16 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
