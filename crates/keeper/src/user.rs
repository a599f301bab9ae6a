//! Selection of the user that the server runs as.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use rustix::process::{getegid, geteuid};

use crate::Error;

/// The fallback, created by the installation.
const SYSTEM_USER: &str = "skep";
const PASSWD: &str = "/etc/passwd";

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name, or the user id as text if it has none.
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl User {
    /// The requested user, else the owner of the first root unless that is root, else the system user.
    ///
    /// # Errors
    /// There is no such user.
    pub fn resolve(asked: Option<&str>, first_root: Option<&Path>) -> Result<Self, Error> {
        let passwd = fs::read_to_string(PASSWD).map_err(Error::io(PASSWD))?;
        let owner = first_root.and_then(|root| root.metadata().ok()).map(|found| (found.uid(), found.gid()));
        choose(&passwd, asked, owner)
    }

    /// The user of this process, which is the server's where the keeper does not run as root.
    pub(crate) fn current() -> Self {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
        let known = passwd.lines().filter_map(parse).find(|user| user.uid == uid);
        Self { name: known.map_or_else(|| uid.to_string(), |user| user.name), uid, gid }
    }

    /// Whether the user is root. Then only Landlock and dropped capabilities confine the server.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

fn choose(passwd: &str, asked: Option<&str>, owner: Option<(u32, u32)>) -> Result<User, Error> {
    let users = || passwd.lines().filter_map(parse);
    let named =
        |name: &str| users().find(|user| user.name == name).ok_or_else(|| Error::NoUser(name.to_owned()));
    match (asked, owner) {
        (Some(name), _) => named(name),
        (None, Some((uid, gid))) if uid != 0 => Ok(users()
            .find(|user| user.uid == uid)
            .unwrap_or_else(|| User { name: uid.to_string(), uid, gid })),
        (None, _) => named(SYSTEM_USER),
    }
}

/// `name:password:uid:gid:...`
fn parse(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
    Some(User { name, uid: fields.nth(1)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str =
        "root:x:0:0:root:/root:/bin/sh\n+::::::\nann:x:1000:100::/home/ann:\nskep:x:990:990::/:\n";

    #[test]
    fn the_server_runs_as_the_owner_of_the_first_root_unless_it_is_root() {
        let chosen = |asked, owner| choose(USERS, asked, owner).map(|user| (user.name, user.uid, user.gid));
        assert_eq!(chosen(None, Some((1000, 5))).unwrap(), ("ann".to_owned(), 1000, 100));
        assert_eq!(chosen(None, Some((4321, 5))).unwrap(), ("4321".to_owned(), 4321, 5));
        assert_eq!(chosen(None, Some((0, 0))).unwrap().0, "skep");
        assert_eq!(chosen(None, None).unwrap().0, "skep");
        assert_eq!(chosen(Some("root"), Some((1000, 5))).unwrap().1, 0);
        assert!(chosen(Some("nobody-here"), None).is_err());
        assert!(choose("root:x:0:0::/:", None, None).is_err());
    }
}
