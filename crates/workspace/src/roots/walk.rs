//! Resolves the symbolic links of a path across roots.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, readlinkat},
    io::Errno,
};

use super::{FinalLink, Links, Roots, kind};

/// The most symbolic links in one path, as in the kernel (path_resolution(7)).
pub(crate) const MAX_LINKS: usize = 40;

/// Resolves a path across roots. The result had no links when the walk read it, and may be below no root.
///
/// Components above the roots are not examined: there the path is taken literally.
pub(super) fn walk(roots: &Roots, path: &Path, last: FinalLink) -> io::Result<PathBuf> {
    let mut at = PathBuf::from("/");
    let mut remaining: VecDeque<Step> = steps(path).collect();
    let mut links = 0;
    while let Some(step) = remaining.pop_front() {
        let name = match step {
            Step::Up => {
                at.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        at.push(&name);
        if remaining.is_empty() && last == FinalLink::NoFollow {
            break;
        }
        let Some(target) = read_link(roots, &at)? else { continue };
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        at.pop();
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for step in steps(&target).collect::<Vec<_>>().into_iter().rev() {
            remaining.push_front(step);
        }
    }
    Ok(at)
}

/// A component of a path.
enum Step {
    Up,
    Down(OsString),
}

fn steps(path: &Path) -> impl Iterator<Item = Step> {
    path.components().filter_map(|component| match component {
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The target of a symbolic link; `None` for anything else.
fn read_link(roots: &Roots, path: &Path) -> io::Result<Option<PathBuf>> {
    let Some((root, relative)) = roots.innermost_root(path) else { return Ok(None) };
    let handle = root.handle(&relative, FinalLink::NoFollow, Links::None)?;
    if kind(&handle)? != FileType::Symlink {
        return Ok(None);
    }
    let target = readlinkat(&handle, OsStr::new(""), Vec::new())?;
    Ok(Some(OsString::from_vec(target.into_bytes()).into()))
}
