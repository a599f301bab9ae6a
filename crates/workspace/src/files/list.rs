//! Listing a folder page by page.

use std::{
    collections::BinaryHeap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat, readlinkat, statat},
    io::Errno,
};
use skep_api::{
    budget::Budget,
    files::{FolderEntry, FolderPage, ListFolder},
    path::encode_path,
};

use super::{encoded_path, file_type, modified_at, on_disk, size, temporary::is_temporary};
use crate::{
    Error, Place, Roots, Run,
    roots::{FinalLink, PathHandle},
};

impl Run for ListFolder {
    async fn run(self, place: &Place) -> Result<FolderPage, Error> {
        on_disk(place, move |roots| list(roots, &self)).await
    }
}

fn list(roots: &Roots, request: &ListFolder) -> Result<FolderPage, Error> {
    let path = request.path.as_path();
    let refused = |error: Errno| Error::of_path(path, &error.into());
    let folder = roots.find(path, FinalLink::Follow)?;
    if !folder.is_directory() {
        return Err(Error::NotAFolder { path: path.display().to_string() });
    }
    let after = request.cursor.as_deref().map(decode_cursor).transpose()?;
    let limit = request.limit as usize;
    let mut names = first_names(&folder, after.as_deref(), limit + 1).map_err(refused)?;
    let more = names.len() > limit;
    names.truncate(limit);
    let Listed { entries, covered: through } = read_entries(&folder, path, &names).map_err(refused)?;
    let more = more || through < names.len();
    let next_cursor = names[..through].last().filter(|_| more).map(|name| encode_cursor(name));
    let (path, path_encoding) = encoded_path(path);
    Ok(FolderPage { path, path_encoding, entries, next_cursor })
}

/// The entries of a page, and how many of its names they cover. A name has no entry if the file was removed meanwhile.
struct Listed {
    entries: Vec<FolderEntry>,
    covered: usize,
}

/// The entries of these names, as many as fit into one answer.
fn read_entries(folder: &PathHandle, path: &std::path::Path, names: &[OsString]) -> Result<Listed, Errno> {
    let (mut entries, mut budget) = (Vec::new(), Budget::default());
    for (at, name) in names.iter().enumerate() {
        let Some(entry) = entry(folder, path, name)? else { continue };
        if !budget.try_add(&entry) && !entries.is_empty() {
            return Ok(Listed { entries, covered: at });
        }
        entries.push(entry);
    }
    Ok(Listed { entries, covered: names.len() })
}

/// The first `count` names after `after`, in order. Memory is bounded by `count`, not by the size of the folder.
fn first_names(folder: &PathHandle, after: Option<&OsStr>, count: usize) -> Result<Vec<OsString>, Errno> {
    let mut first = BinaryHeap::with_capacity(count + 1);
    for entry in Dir::read_from(
        folder.open_for_reading().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
    )? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." || is_temporary(name) || after.is_some_and(|after| name <= after) {
            continue;
        }
        first.push(name.to_owned());
        if first.len() > count {
            first.pop();
        }
    }
    Ok(first.into_sorted_vec())
}

/// One entry; `None` if it was removed meanwhile.
fn entry(folder: &PathHandle, path: &std::path::Path, name: &OsStr) -> Result<Option<FolderEntry>, Errno> {
    let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    let target = match kind {
        FileType::Symlink => readlinkat(folder, name, Vec::new()).ok(),
        _ => None,
    };
    let target = target.map(|target| encode_path(&OsString::from_vec(target.into_bytes())));
    let target_encoding = target.as_ref().and_then(|(_, encoding)| *encoding);
    let (encoded_name, name_encoding) = encode_path(name);
    let whole = path.join(name);
    let whole = match name_encoding {
        None => whole.to_string_lossy().into_owned(),
        Some(_) => encode_path(whole.as_os_str()).0,
    };
    Ok(Some(FolderEntry {
        name: encoded_name,
        path: whole,
        name_encoding,
        r#type: file_type(kind),
        size_bytes: size(&stat),
        mode: mode(&stat),
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_at: modified_at(&stat),
        target: target.map(|(text, _)| text),
        target_encoding,
    }))
}

/// The permission bits in octal, as `chmod` takes them.
fn mode(stat: &Stat) -> String {
    format!("{:04o}", stat.st_mode & 0o7777)
}

/// The cursor of a name: base64, so that any bytes are allowed.
fn encode_cursor(name: &OsStr) -> String {
    data_encoding::BASE64URL_NOPAD.encode(name.as_bytes())
}

fn decode_cursor(cursor: &str) -> Result<OsString, Error> {
    let bytes = data_encoding::BASE64URL_NOPAD.decode(cursor.as_bytes());
    bytes.map(OsString::from_vec).map_err(|_| Error::InvalidValue {
        field: "cursor",
        reason: format!("is `{cursor}`, which no page answered; take `next_cursor` of the page before"),
    })
}
