//! `skep config check`: valid and invalid settings.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::harness::{Skep, binary, output_of, serve};

fn check(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("skep.toml");
    fs::write(&config, file).unwrap();
    let mut command = Command::new(binary());
    command.args(["config", "check", "--config"]).arg(&config).args(flags).envs(variables.iter().copied());
    command.env_remove("SKEP_IMAGE_DIR").output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn setting<'a>(answer: &'a Value, name: &str) -> &'a Value {
    answer["settings"].as_array().unwrap().iter().find(|line| line["setting"] == name).unwrap()
}

#[test]
fn each_value_is_shown_with_where_it_came_from() {
    let file = "log_level = \"debug\"\nlisten = \"127.0.0.1:1\"\nmax_vms = 5\n";
    let output = check(file, &[("SKEP_LISTEN", "127.0.0.1:2")], &["--json", "--max-vms", "9"]);
    let answer = json(&output);
    assert_eq!((output.status.code(), &answer["valid"]), (Some(0), &Value::Bool(true)), "{answer}");
    let log_level = setting(&answer, "log_level");
    assert_eq!(
        (&log_level["value"], &log_level["from"], &log_level["line"]),
        (&"debug".into(), &"file".into(), &1.into())
    );
    let listen = setting(&answer, "listen");
    assert_eq!((&listen["value"], &listen["variable"]), (&"127.0.0.1:2".into(), &"SKEP_LISTEN".into()));
    let max_vms = setting(&answer, "max_vms");
    assert_eq!((&max_vms["value"], &max_vms["from"]), (&"9".into(), &"flag".into()));
    assert_eq!(setting(&answer, "log_format")["from"], "default");
    assert_eq!(setting(&answer, "user")["value"], Value::Null);
    let text = String::from_utf8(check(file, &[], &[]).stdout).unwrap();
    assert!(text.contains("skep.toml:2") && text.contains("127.0.0.1:1"), "{text}");
}

/// The data directory of a server that this user starts with these variables alone; `None` is the user of the test.
fn data_dir_of(user: Option<u32>, variables: &[(&str, &str)]) -> Value {
    let mut command = Command::new(binary());
    command.args(["config", "check", "--json"]).env_clear().envs(variables.iter().copied());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    setting(&json(&command.current_dir("/").output().unwrap()), "data_dir")["value"].clone()
}

#[test]
fn the_data_directory_of_root_is_that_of_the_machine_and_others_have_their_own() {
    const NOBODY: u32 = 65534;
    let is_root = rustix::process::getuid().is_root();
    let other = is_root.then_some(NOBODY);
    for (variables, data_dir) in [
        (&[("XDG_STATE_HOME", "/x"), ("HOME", "/y")][..], "/x/skep"),
        (&[("HOME", "/y")], "/y/.local/state/skep"),
        // The XDG specification says that relative paths are ignored.
        (&[("XDG_STATE_HOME", "x"), ("HOME", "/y")], "/y/.local/state/skep"),
    ] {
        assert_eq!(data_dir_of(other, variables), data_dir, "{variables:?}");
    }
    if is_root {
        let variables = [("XDG_STATE_HOME", "/x"), ("HOME", "/y")];
        assert_eq!(data_dir_of(None, &variables), "/var/lib/skep");
    }
}

#[test]
fn every_error_is_named_with_file_line_and_way_out() {
    let output = check("listen = \"x\"\nbogus = 1\n", &[("SKEP_MAX_VMS", "many")], &["--json"]);
    let answer = json(&output);
    assert_eq!(output.status.code(), Some(1), "{answer}");
    let errors = answer["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 3, "{answer}");
    for (name, line, variable) in [
        ("listen", 1.into(), Value::Null),
        ("bogus", 2.into(), Value::Null),
        ("max_vms", Value::Null, "SKEP_MAX_VMS".into()),
    ] {
        let error = errors.iter().find(|error| error["setting"] == name).unwrap();
        assert_eq!((&error["line"], &error["variable"]), (&line, &variable), "{error}");
        assert!(!error["message"].as_str().unwrap().is_empty() && error["way_out"].is_string(), "{error}");
    }
    let message = String::from_utf8(check("bogus = 1", &[], &[]).stderr).unwrap();
    assert!(message.contains("skep.toml:1: bogus: ") && message.contains("=> "), "{message}");
}

#[test]
fn what_serve_would_refuse_is_refused() {
    for (file, flags, named) in [
        ("listen = \"192.0.2.1:1\"", &[][..], "listen"),
        ("metrics_listen = \"0.0.0.0:1\"", &[], "metrics_listen"),
        ("log_level = \"loud\"", &[], "log_level"),
        ("", &["--metrics-listen", "192.0.2.1:9"], "metrics_listen"),
    ] {
        let flags: Vec<&str> = flags.iter().copied().chain(["--json"]).collect();
        let output = check(file, &[], &flags);
        let answer = json(&output);
        assert_eq!(
            (output.status.code(), &answer["errors"][0]["setting"]),
            (Some(1), &named.into()),
            "{answer}"
        );
    }
    let missing =
        Command::new(binary()).args(["config", "check", "--config", "/no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot be read"), "{missing:?}");
}

/// The sizes and speeds of VMs that no server takes, with what each message names.
#[test]
fn a_size_or_speed_that_vms_cannot_have_is_refused_with_its_value_and_the_range() {
    let refused_by_all = [
        ("base_memory_mb", "0", "0 is not in 128.."),
        ("base_memory_mb", "127", "127 is not in 128.."),
        ("base_memory_mb", "-1", "-1"),
        ("base_vcpus", "0", "0 is not in 1.."),
        ("base_vcpus", "4294967296", "4294967296"),
        ("base_disk_mb", "0", "0 is not in 128..=1048576"),
        ("base_disk_mb", "127", "127 is not in 128..=1048576"),
        ("base_disk_mb", "1000000000", "1000000000 is not in 128..=1048576"),
        ("vm_disk_mbps", "1000000000", "1000000000 is not in 0..=1000000"),
        ("vm_disk_iops", "1", "`1` is neither 0, for no limit, nor a number from 100 to 10000000"),
        ("memory_overcommit", "0", "`0` is not a number from 1 to 1000"),
    ];
    // Only root has VMs, so only root is told what the machine does not have.
    let refused_by_machine = [
        ("base_memory_mb", "1000000000", "`base_memory_mb` is 1000000000; a VM has from 128 to "),
        ("base_vcpus", "1000000000", "`base_vcpus` is 1000000000; a VM has from 1 to "),
    ];
    let of_machine = refused_by_machine.into_iter().filter(|_| rustix::process::getuid().is_root());
    for (setting, value, named) in refused_by_all.into_iter().chain(of_machine) {
        let flag = format!("--{}={value}", setting.replace('_', "-"));
        let file = format!("{setting} = {value}\n");
        for (file, flags) in [("", vec!["--json", &flag]), (&file, vec!["--json"])] {
            let output = check(file, &[], &flags);
            let answer = json(&output);
            assert_eq!(output.status.code(), Some(1), "{setting} = {value}: {answer}");
            let error = &answer["errors"][0];
            assert_eq!(error["setting"], setting, "{answer}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(named), "{setting} = {value}: {message}");
        }
    }
    // The control: each at the edge of its range.
    let edges = "base_memory_mb = 128\nbase_vcpus = 1\nbase_disk_mb = 1048576\nvm_disk_mbps = 0\nvm_disk_iops = 100\n";
    assert_eq!(json(&check(edges, &[], &["--json"]))["valid"], true);
}

#[test]
fn a_filter_is_one_that_the_system_knows() {
    let known = tempfile::NamedTempFile::new().unwrap();
    fs::write(known.path(), "[filter \"case\"]\n\tclean = tr A-Z a-z\n").unwrap();
    let system = [("GIT_CONFIG_SYSTEM", known.path().to_str().unwrap())];
    let answer = json(&check("git_filter = \"case\"\n", &system, &["--json"]));
    assert_eq!(answer["valid"], true, "{answer}");
    for (name, way_out) in [("lfs", "git lfs install --system"), ("a.b", "letters"), ("", "letters")] {
        let output = check(&format!("git_filter = \"{name}\"\n"), &system, &["--json"]);
        let error = json(&output)["errors"][0].clone();
        assert_eq!((output.status.code(), &error["setting"]), (Some(1), &"git_filter".into()), "{error}");
        assert!(error["message"].as_str().unwrap().contains(way_out), "{error}");
    }
}

/// A start that must fail, and what it prints.
fn refused_start(data_dir: &Path, options: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir).args(options);
    // An address that is refused would end it too, before it bakes.
    let output = output_of(command.env_remove("SKEP_IMAGE_DIR"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_root_that_reaches_the_data_directory_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    fs::create_dir_all(data_dir.join("server")).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(data_dir.join("server"), &link).unwrap();
    for root in [Path::new("/"), folder.path(), &data_dir.join("server"), &link] {
        let message = refused_start(&data_dir, &["--root", root.to_str().unwrap()]);
        assert!(message.contains("server's own data"), "{root:?}: {message}");
    }
    let message = refused_start(&data_dir, &["--root", "/proc/self"]);
    assert!(message.contains("/proc, /sys or /dev"), "{message}");
    // The control: these roots pass a comparison of names.
    assert!(!link.starts_with(&data_dir) && !data_dir.starts_with(&link));
}

#[test]
fn a_data_directory_that_cannot_be_made_is_refused_with_the_reason() {
    let message = refused_start(Path::new("/proc/skep-test"), &[]);
    assert!(message.contains("/proc/skep-test") && !message.contains("overflow"), "{message}");
}

#[tokio::test]
async fn a_root_in_that_of_another_account_is_refused_at_the_start() {
    let skep = Skep::start().await;
    let acme = skep.post("/api/accounts", &json!({"name": "acme"})).await.ok(201);
    let root = acme["roots"][0].as_str().unwrap().to_owned();
    let data_dir = skep.stop();
    let inside = format!("{root}/inside");
    fs::create_dir(&inside).unwrap();
    for root in [&root, &inside] {
        let output = output_of(&mut serve(data_dir.path(), &["--root", root]));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("acme") && message.contains("--root"), "{message}");
    }
    // The control.
    Skep::start_on(data_dir, &[]).await.stop();
}

/// What needs root.
mod root {
    use super::*;

    /// A start of root bakes and makes folders.
    #[test]
    fn settings_are_checked_before_anything_is_made_or_baked() {
        let folder = tempfile::tempdir().unwrap();
        let (data_dir, images) = (folder.path().join("data"), folder.path().join("images"));
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        for (data_dir, options, named) in [
            (&data_dir, vec!["--user".to_owned(), "skep-test-missing".to_owned()], "skep-test-missing"),
            (&data_dir, vec!["--root".to_owned(), "/proc/self".to_owned()], "/proc"),
            (&data_dir, vec!["--root".to_owned(), text(&file)], "file"),
            (&file, vec![], "is not a directory"),
            (&open, vec![], "can be written by others"),
        ] {
            for verb in ["serve", "bake"] {
                let mut command = Command::new(binary());
                command.args([verb, "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir).args(&options);
                command.arg("--image-dir").arg(&images).env_remove("SKEP_IMAGE_DIR");
                let output = output_of(&mut command);
                assert_eq!(output.status.code(), Some(1), "{output:?}");
                let message = String::from_utf8(output.stderr).unwrap();
                assert!(message.contains(named) && !message.contains("bake:"), "{verb}: {message}");
            }
        }
        assert!(!data_dir.exists() && !images.exists() && fs::read_dir(&open).unwrap().next().is_none());
    }
}
