use std::{ffi::OsString, fs, path::Path};

use clap::{Command, Parser};
use skep_api::templates::GuestSize;
use tempfile::NamedTempFile;

use super::{file::setting_ids, *};

#[derive(Debug, Parser)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Serve {
        #[command(flatten)]
        settings: Settings,
    },
}

fn read(file: &str, flags: &[&str]) -> Result<Settings, ParseError> {
    let named = NamedTempFile::new().unwrap();
    fs::write(named.path(), file).unwrap();
    let path = named.path().to_str().unwrap();
    let line =
        ["skep", "serve", "--config", path].iter().chain(flags).map(OsString::from).collect::<Vec<_>>();
    try_parse::<Line>(&line).map(|Line { verb: Verb::Serve { settings } }| settings)
}

#[test]
fn file_values_replace_defaults_and_a_flag_wins() {
    let file = "listen = \"127.0.0.1:1\"\nmax_vms = 7\nroot = [\"/a\", \"/b\"]\nlog-format = \"json\"";
    let settings = read(file, &["--max-vms", "9"]).unwrap();
    assert_eq!(settings.listen, "127.0.0.1:1".parse().unwrap());
    assert_eq!(settings.capacity.max_vms, Some(9));
    assert_eq!(settings.roots(), [Path::new("/a"), Path::new("/b")]);
    assert_eq!(settings.log_format, LogFormat::Json);
    assert_eq!(settings.log_level, "info");
}

#[test]
fn the_size_of_vms_comes_from_the_file_and_a_change_needs_a_new_keeper() {
    let file = "base_memory_mb = 2048\nbase_vcpus = 1\nbase_disk_mb = 4096\nmemory_overcommit = 1.5\nvm_disk_mbps = 50\nvm_disk_iops = 0";
    let settings = read(file, &[]).unwrap();
    let size = GuestSize { memory_mb: 2048, vcpus: 1, disk_mb: 4096 };
    assert_eq!((settings.base.guest(), settings.capacity.memory_overcommit), (size, 1.5));
    assert_eq!((settings.vm_disk.vm_disk_mbps, settings.vm_disk.vm_disk_iops), (50, 0));
    for flag in [
        "--base-memory-mb",
        "--base-vcpus",
        "--base-disk-mb",
        "--memory-overcommit",
        "--vm-disk-mbps",
        "--vm-disk-iops",
    ] {
        let other = read(file, &[flag, "512"]).unwrap();
        let reason = crate::reload::needs_keeper_restart(&settings, &other).unwrap();
        let name = flag.trim_start_matches("--").replace('-', "_");
        assert!(reason.starts_with(&format!("`{name}` changed from ")), "{reason}");
    }
}

#[test]
fn settings_that_are_not_given_have_the_documented_defaults() {
    let settings = read("", &[]).unwrap();
    assert_eq!(settings.listen, "127.0.0.1:7700".parse().unwrap());
    let capacity = settings.capacity;
    assert_eq!((capacity.max_vms, capacity.memory_mb), (None, None));
    assert_eq!((capacity.memory_overcommit, capacity.memory_guard), (4.0, MemoryGuard::On));
    // Megabytes per second and operations per second.
    assert_eq!((settings.vm_disk.vm_disk_mbps, settings.vm_disk.vm_disk_iops), (200, 5000));
    assert_eq!(settings.egress.egress, EgressUse::On);
    let limits = settings.transport.limits();
    assert_eq!((limits.rate_limit, limits.address_rate_limit), (None, None));
}

#[test]
fn a_file_that_cannot_be_used_names_the_key() {
    for (file, named) in [
        ("listen = \"x\"", "--listen"),
        ("config = \"x\"", "`config`"),
        ("shell_ahead = \"off\"", "`shell_ahead` is no longer a setting; delete its line"),
        ("shell-ahead = \"auto\"", "`shell-ahead` is no longer a setting; delete its line"),
        ("max_vms = 1\nmax-vms = 2", "`max_vms`"),
        ("max_vms = 1.5", "`max_vms`"),
        ("base_memory_mb = 64", "--base-memory-mb"),
        ("base_vcpus = 0", "--base-vcpus"),
        ("base_disk_mb = 64", "--base-disk-mb"),
        ("memory_overcommit = 0.5", "--memory-overcommit"),
        ("vm_disk_mbps = 1000001", "--vm-disk-mbps"),
        ("vm_disk_iops = 99", "--vm-disk-iops"),
        ("[root]\na = 1", "`root`"),
        ("listen = ", "listen"),
    ] {
        let error = read(file, &[]).unwrap_err().to_string();
        assert!(error.contains(named), "{file}: {error}");
    }
}

#[test]
fn a_lifetime_is_a_positive_duration() {
    assert_eq!(lifetime("1h 30m"), Ok(Duration::from_secs(5400)));
    for wrong in ["", "soon", "-5s", "0s", "5"] {
        lifetime(wrong).unwrap_err();
    }
}

#[test]
fn every_setting_has_a_variable_and_a_key_of_its_name() {
    let command = Settings::augment_args(Command::new("settings"));
    for argument in command.get_arguments() {
        let id = argument.get_id().to_string();
        assert_eq!(argument.get_long(), Some(id.replace('_', "-").as_str()));
        let variable = argument.get_env().unwrap().to_str().unwrap().to_owned();
        assert_eq!(variable, format!("SKEP_{}", id.to_uppercase()));
    }
    assert!(setting_ids().contains(&"data_dir".to_owned()));
}
