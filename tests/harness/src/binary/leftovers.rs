//! Finds what a server left behind: processes, network namespaces with their taps, cgroups, mounts, sockets.

use std::collections::BTreeSet;
use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::control_groups;

/// The name that a server with this data directory gives to objects outside of it.
pub(super) fn instance_name(data_dir: &Path) -> String {
    let path = fs::canonicalize(data_dir).unwrap();
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..12].to_owned()
}

/// Everything that the server of a data directory left behind.
pub fn left_by_server(data_dir: &Path) -> Vec<String> {
    let name = instance_name(data_dir);
    let mut left = processes(data_dir, &name);
    let namespace = PathBuf::from(format!("/run/netns/skep-{name}"));
    let sockets = PathBuf::from(format!("/run/skep/{name}"));
    left.extend(
        [namespace, sockets].iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(&name)).map(|line| format!("mount {line}")));
    left.extend(cgroups(&name).iter().map(|group| group.display().to_string()));
    for folder in ["keeper/layers", "keeper/vms"] {
        let entries = fs::read_dir(data_dir.join(folder)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    left
}

/// The ids of VMs that still have records, sockets, control groups or processes, for each of these kinds.
pub fn of_vms(data_dir: &Path) -> [(&'static str, BTreeSet<String>); 4] {
    let name = instance_name(data_dir);
    let names =
        |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let stems = |paths: &mut dyn Iterator<Item = PathBuf>| -> BTreeSet<String> {
        paths.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
    };
    let trees = cgroups(&name);
    // Beside them there is the group of the egress process.
    let is_of_vm = |path: &PathBuf| path.file_name().is_some_and(|name| name != "egress");
    let is_socket_of_vm = |path: &PathBuf| path.file_name().is_some_and(|name| name != "egress.sock");
    let mut groups =
        trees.iter().flat_map(|tree| names(tree.clone())).filter(|path| path.is_dir() && is_of_vm(path));
    let procs = trees.iter().flat_map(|tree| names(tree.clone())).filter(is_of_vm).filter(|group| {
        fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|procs| !procs.trim().is_empty())
    });
    let processes = stems(&mut procs.into_iter());
    [
        ("records", stems(&mut names(data_dir.join("keeper/vms")))),
        ("sockets", stems(&mut names(format!("/run/skep/{name}").into()).filter(is_socket_of_vm))),
        ("control groups", stems(&mut groups)),
        ("processes", processes),
    ]
}

/// Everything that a bake in an image directory left behind besides templates.
pub fn of_bake(image_dir: &Path) -> Vec<String> {
    let name = instance_name(image_dir);
    let mut left = processes(image_dir, &name);
    // A process without a command line has ended and is not yet reaped.
    left.retain(|process| !process.ends_with(": "));
    let namespace = PathBuf::from(format!("/run/netns/skep-bake-{name}"));
    let sockets = PathBuf::from(format!("/run/skep/bake-{name}"));
    left.extend(
        [namespace, sockets].iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
    );
    left.extend(cgroups(&name).iter().map(|group| group.display().to_string()));
    for folder in ["base", ".cache"] {
        let entries = fs::read_dir(image_dir.join(folder)).into_iter().flatten().flatten();
        let partial = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
        left.extend(partial.map(|entry| entry.path().display().to_string()));
    }
    left
}

fn processes(data_dir: &Path, name: &str) -> Vec<String> {
    let dir = data_dir.display().to_string();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbered =
        all.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    let of_server = |path: &Path| {
        let read = |file: &str| {
            fs::read(path.join(file)).map(|text| String::from_utf8_lossy(&text).replace('\0', " "))
        };
        let (command, groups) = (read("cmdline").ok()?, read("cgroup").unwrap_or_default());
        let status = read("status").ok()?;
        // An orphan that has ended is reaped by init at some later time.
        if status.contains("State:\tZ") && status.contains("PPid:\t1\n") {
            return None;
        }
        (command.contains(&dir) || groups.contains(name))
            .then(|| format!("process {}: {command}", path.display()))
    };
    numbered.filter_map(|entry| of_server(&entry.path())).collect()
}

fn cgroups(name: &str) -> Vec<PathBuf> {
    control_groups(|group| group.contains(name))
}
