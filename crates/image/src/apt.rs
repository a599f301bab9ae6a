//! Access to the package sources of this machine's apt, so that no mirror has to be configured.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use crate::{
    Error,
    command::{Containment, Program},
};

const APT_GET: Program = Program { name: "apt-get", package: "apt" };
const APT_CACHE: Program = Program { name: "apt-cache", package: "apt" };
const APT_CONFIG: Program = Program { name: "apt-config", package: "apt" };

/// It depends on the newest kernel for VMs.
const METAPACKAGE: &str = "linux-image-cloud-amd64";

/// A Debian archive in this machine's package sources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Archive {
    uri: String,
    pub(crate) codename: String,
    component: String,
}

impl Archive {
    /// Formats the archive as a line of `sources.list`.
    pub(crate) fn line(&self) -> String {
        format!("deb {} {} {}", self.uri, self.codename, self.component)
    }
}

/// Returns the Debian archives of this machine, the release itself first.
pub(crate) fn archives() -> Result<Vec<Archive>, Error> {
    let format = "$(CREATED_BY)|$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)";
    let listing = APT_GET.run(Path::new("/"), &["indextargets", "--format", format])?;
    let mut archives: Vec<Archive> = listing.lines().filter_map(parse_archive).collect();
    // Codenames of releases have no hyphen; those of their updates do.
    archives.sort_by_key(|archive| (archive.codename.contains('-'), archive.clone()));
    archives.dedup();
    match archives.first() {
        Some(first) if !first.codename.contains('-') => {
            let release = first.codename.clone();
            // Keeps updates and security updates, and excludes others such as backports.
            archives.retain(|archive| {
                [release.clone(), format!("{release}-updates"), format!("{release}-security")]
                    .contains(&archive.codename)
            });
            Ok(archives)
        }
        _ => Err(Error::NoPackageLists),
    }
}

fn parse_archive(line: &str) -> Option<Archive> {
    let fields: Vec<&str> = line.split('|').collect();
    let ["Packages", "Debian", uri, codename, component] = fields[..] else { return None };
    Some(Archive { uri: uri.to_owned(), codename: codename.to_owned(), component: component.to_owned() })
}

/// Returns the proxy settings of this machine's apt, as apt options.
pub(crate) fn proxies() -> Result<Vec<String>, Error> {
    let keys = ["Acquire::http::Proxy", "Acquire::https::Proxy"];
    let output = APT_CONFIG.run(Path::new("/"), &["dump", "--format", "%f|%v%n"])?;
    let lines = output.lines().filter_map(|line| line.split_once('|'));
    Ok(lines
        .filter(|(key, value)| keys.contains(key) && !value.is_empty())
        .map(|(key, value)| format!("{key} \"{value}\";"))
        .collect())
}

/// Returns the package with the newest kernel for VMs, and its version. Apt keeps its own cache in the folder `cache`.
pub(crate) fn kernel_package(cache: &Path) -> Result<(String, String), Error> {
    let options = cache_options(cache)?;
    let ask = |words: [&str; 2]| {
        let arguments: Vec<&OsStr> =
            words.iter().map(OsStr::new).chain(options.iter().map(OsString::as_os_str)).collect();
        APT_CACHE.run(Path::new("/"), &arguments)
    };
    // In two steps, because `show --no-all-versions` first resolves what all packages depend on, which takes ten times as long.
    let candidate = parse_candidate(&ask(["policy", METAPACKAGE])?).ok_or(Error::NoPackageLists)?;
    let shown = ask(["show", &format!("{METAPACKAGE}={candidate}")])?;
    parse_kernel(&shown).ok_or(Error::NoPackageLists)
}

/// Parses the version that apt would install.
fn parse_candidate(policy: &str) -> Option<String> {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Container images turn apt's cache off, and parsing the package lists would be the longest part of a start. Apt renews
/// the file when the lists change.
fn cache_options(cache: &Path) -> Result<Vec<OsString>, Error> {
    // Apt takes every path below /dev/null for the device itself, and would change its mode as it does that of a cache.
    if !cache.is_dir() {
        return Ok(Vec::new());
    }
    let cache = std::path::absolute(cache).map_err(Error::io(cache.display()))?;
    let mut pkgcache = OsString::from("Dir::Cache::pkgcache=");
    pkgcache.push(cache.join("pkgcache.bin"));
    Ok(vec!["-o".into(), "Dir::Cache::srcpkgcache=".into(), "-o".into(), pkgcache])
}

/// Parses package and version from a line such as `Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)`.
fn parse_kernel(shown: &str) -> Option<(String, String)> {
    let depends = shown.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let package = depends.split([',', ' ']).find(|word| word.starts_with("linux-image-"))?;
    let version = match depends.split_once("(= ") {
        Some((_, rest)) => rest.split(')').next()?,
        None => shown.lines().find_map(|line| line.strip_prefix("Version: "))?,
    };
    Some((package.to_owned(), version.to_owned()))
}

/// Downloads a package into a directory.
pub(crate) fn download(package: &str, version: &str, into: &Path, pen: &Containment) -> Result<(), Error> {
    let wanted = format!("{package}={version}");
    // By default apt drops root privileges for downloads, to a user that cannot write here.
    pen.run(&APT_GET, into, &["-q", "-o", "APT::Sandbox::User=root", "download", &wanted]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_is_given_a_cache_only_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pkgcache.bin").display().to_string();
        let options = cache_options(folder.path()).unwrap();
        assert_eq!(options.last().unwrap().to_str().unwrap(), format!("Dir::Cache::pkgcache={path}"));
        for none in [Path::new("/dev/null/images/.cache"), &folder.path().join("missing")] {
            assert!(cache_options(none).unwrap().is_empty(), "{}", none.display());
        }
    }

    #[test]
    fn other_peoples_archives_are_left_out() {
        assert!(parse_archive("Packages||http://other.example/|stable|main").is_none());
        assert!(parse_archive("Translations|Debian|http://mirror.example/|bookworm|main").is_none());
        let archive = parse_archive("Packages|Debian|http://mirror.example/debian/|bookworm|main").unwrap();
        assert_eq!(archive.line(), "deb http://mirror.example/debian/ bookworm main");
    }

    #[test]
    fn the_candidate_is_the_version_that_apt_would_install() {
        let policy = "linux-image-cloud-amd64:\n  Installed: (none)\n  Candidate: 6.1.172-1\n  Version table:\n     6.1.172-1 500\n";
        assert_eq!(parse_candidate(policy).as_deref(), Some("6.1.172-1"));
        assert_eq!(parse_candidate(&policy.replace("6.1.172-1", "(none)")), None);
        assert_eq!(parse_candidate(""), None);
    }

    #[test]
    fn the_kernel_is_what_the_metapackage_depends_on() {
        let shown = "Package: linux-image-cloud-amd64\nVersion: 9\nDepends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n";
        let wanted = ("linux-image-6.1.0-56-cloud-amd64".to_owned(), "6.1.192-2".to_owned());
        assert_eq!(parse_kernel(shown), Some(wanted));
        assert_eq!(parse_kernel("Package: x\n"), None);
    }
}
