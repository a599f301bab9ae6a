//! Handing a token to git: in a file without a name that only its processes have, so that it stands on no command line, in
//! no environment and in no settings.

use std::{
    io,
    io::Write,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    fs::{MemfdFlags, Mode, fchmod, memfd_create},
    io::{FdFlags, fcntl_setfd},
};
use skep_api::git::Credential;

use super::settings::Settings;

/// A token in memory, and the settings by which git asks for it, for this host alone.
pub(super) fn hand_over(
    settings: Settings,
    host: &str,
    credential: &Credential,
) -> io::Result<(Settings, OwnedFd)> {
    let file = memfd_create("git-credential", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    // The lines of git-credential(1).
    writeln!(file, "username={}\npassword={}", credential.username, credential.token)?;
    let descriptor = OwnedFd::from(file);
    let number = descriptor.as_raw_fd();
    let helper = format!("!f() {{ test \"$1\" = get && cat /proc/self/fd/{number}; }}; f");
    Ok((settings.with(format!("credential.https://{host}.helper"), helper), descriptor))
}

/// A private key in memory, and the command by which git starts ssh with it.
///
/// Ssh closes whatever it inherits, and looks that nobody else may read the key: so the shell that git starts stays, and
/// keeps it open.
pub(super) fn hand_over_key(ssh: &str, credential: &Credential) -> io::Result<(String, OwnedFd)> {
    let mut file = std::fs::File::from(memfd_create("ssh-key", MemfdFlags::CLOEXEC)?);
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    file.write_all(credential.token.as_bytes())?;
    let descriptor = OwnedFd::from(file);
    let number = descriptor.as_raw_fd();
    let key = format!("-o IdentitiesOnly=yes -i /proc/$$/fd/{number}");
    Ok((format!("f() {{ {ssh} {key} \"$@\"; exit $?; }}; f"), descriptor))
}

/// Lets a program that is about to be executed have this descriptor. Between fork and exec.
pub(super) fn pass(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: whoever starts the program holds the descriptor open meanwhile, and the child has a copy of all.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::PermissionsExt, process::CommandExt},
        process::Command,
    };

    use super::*;

    /// As ssh does, this one closes what it inherited, and reads the file that it is told of.
    const LIKE_SSH: &str = "#!/bin/sh\nfor number in 3 4 5 6 7 8 9; do eval \"exec $number>&-\"; done\n\
        while [ \"$1\" != -i ]; do shift; done\nstat -Lc %a \"$2\"; cat \"$2\"; shift 2; echo \"$@\"\n";

    #[test]
    fn a_key_is_read_by_a_program_that_closes_all_it_inherits() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ssh");
        fs::write(&program, LIKE_SSH).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let credential = Credential { username: String::new(), token: "the key\n".to_owned() };
        let (command, key) = hand_over_key(program.to_str().unwrap(), &credential).unwrap();
        let number = key.as_raw_fd();
        // As git starts it (connect.c).
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{command} \"$@\""), "f", "git@host", "git-upload-pack 'x y'"]);
        // SAFETY: between fork and exec it makes one system call.
        unsafe { shell.pre_exec(move || pass(number)) };
        let said = shell.output().unwrap();
        let out = String::from_utf8_lossy(&said.stdout);
        assert_eq!(out, "600\nthe key\ngit@host git-upload-pack 'x y'\n", "{said:?}");
    }
}
