//! Checks the store: access rights, version, integrity.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustix::process::geteuid;
use skep_store::sqlite::{Inspection, inspect};

use super::Finding;
use crate::{output, privileges::as_owner_of, settings::Settings};

const CHECK: &str = "store";

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![check_mode("data dir", &settings.data_dir, 0o022)];
    findings.push(check_mode("server data", &settings.server_dir(), 0o077));
    findings.push(database(settings));
    findings
}

/// Checks that none of the permission bits `others` is set.
fn check_mode(check: &'static str, path: &Path, others: u32) -> Finding {
    let shown = path.display();
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::ok(check, format!("{shown} is created by the first start"))
        }
        Err(error) => {
            Finding::warning(check, format!("{shown} cannot be read: {error}"), "run `sudo skep doctor`")
        }
        Ok(found) if found.permissions().mode() & others != 0 => {
            let mode = found.permissions().mode() & 0o7777;
            let what = if others == 0o022 { "written" } else { "read or written" };
            let strip = if others == 0o022 { "go-w" } else { "go=" };
            Finding::wrong(
                check,
                format!("{shown} (mode {mode:o}) can be {what} by others"),
                format!("chmod {strip} {shown}"),
            )
        }
        Ok(found) => Finding::ok(check, format!("{shown}, of uid {}, closed to others", found.uid())),
    }
}

fn database(settings: &Settings) -> Finding {
    let store = settings.store();
    let shown = store.display();
    let folder = settings.server_dir();
    let Ok(owner) = folder.metadata().map(|found| found.uid()) else {
        return Finding::ok(CHECK, format!("{shown} is created by the first start"));
    };
    let own = geteuid();
    if !own.is_root() && own.as_raw() != owner {
        return Finding::warning(CHECK, format!("{shown} belongs to uid {owner}"), "run `sudo skep doctor`");
    }
    if fs::symlink_metadata(&store).is_err() {
        return Finding::ok(CHECK, format!("{shown} is created by the first start"));
    }
    for file in ["", "-wal", "-shm"] {
        let mut path = store.as_os_str().to_owned();
        path.push(file);
        if let Some(found) = check_file(Path::new(&path), owner) {
            return found;
        }
    }
    match as_owner_of(&folder, || Ok(inspect(&store)?)) {
        Ok(found) => assess(&found, &store),
        Err(error) => Finding::wrong(
            CHECK,
            output::one_line(&error),
            "check who has it open and whether the disk is full, else restore a backup: `skep restore`",
        ),
    }
}

/// A finding if a file of the database has the wrong owner or can be read by others.
fn check_file(path: &Path, owner: u32) -> Option<Finding> {
    let found = path.symlink_metadata().ok()?;
    let shown = path.display();
    if found.uid() != owner {
        let detail =
            format!("{shown} belongs to uid {}, and the server's uid {owner} cannot write it", found.uid());
        return Some(Finding::wrong(CHECK, detail, format!("chown {owner} {shown}")));
    }
    let others = found.permissions().mode() & 0o077 != 0;
    others.then(|| {
        Finding::wrong(CHECK, format!("{shown} can be read by others"), format!("chmod 600 {shown}"))
    })
}

fn assess(found: &Inspection, store: &Path) -> Finding {
    let Inspection { version, known, problems } = found;
    let shown = store.display();
    match problems.first() {
        _ if version > known => Finding::wrong(
            CHECK,
            format!("{shown} has version {version}, and this skep knows versions up to {known}"),
            "use a newer skep, or restore an older backup with `skep restore`",
        ),
        Some(problem) => Finding::wrong(
            CHECK,
            format!("{shown} is damaged: {problem}"),
            "stop the server and restore a backup with `skep restore`",
        ),
        None if version < known => Finding::ok(
            CHECK,
            format!("{shown}, version {version}, whole; the next start brings it to {known}"),
        ),
        None => Finding::ok(CHECK, format!("{shown}, version {version}, whole")),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn a_store_is_assessed_by_version_and_integrity() {
        let judge = |version, problems: &[&str]| {
            let problems = problems.iter().map(|problem| (*problem).to_owned()).collect();
            assess(&Inspection { version, known: 3, problems }, Path::new("/x/skep.db"))
        };
        assert_eq!((judge(3, &[]).state, judge(2, &[]).state), (State::Ok, State::Ok));
        let newer = judge(9, &[]);
        assert_eq!(newer.state, State::Wrong);
        assert!(newer.detail.contains("version 9"), "{newer:?}");
        assert!(judge(3, &["row 1 missing"]).detail.contains("row 1 missing"));
    }

    #[test]
    fn files_readable_by_others_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skep.db");
        fs::write(&file, "").unwrap();
        let owner = file.metadata().unwrap().uid();
        let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        set(0o600);
        assert!(check_file(&file, owner).is_none());
        assert!(check_file(&file, owner + 1).unwrap().way_out.unwrap().starts_with("chown"));
        set(0o640);
        assert!(check_file(&file, owner).unwrap().way_out.unwrap().starts_with("chmod 600"));
        assert_eq!(check_mode("x", &file, 0o022).state, State::Ok);
        assert_eq!(check_mode("x", &file, 0o077).state, State::Wrong);
        assert_eq!(check_mode("x", &folder.path().join("none"), 0o077).state, State::Ok);
    }
}
