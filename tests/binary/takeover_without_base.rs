//! A server that takes over VMs while the machine has no memory or no disk space for the base template: the VMs run on.

use std::{
    fs,
    path::Path,
    process::{Child, ExitStatus},
    time::Duration,
};

use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Pid, Signal, kill_process},
};
use serde_json::json;

use crate::{
    harness::{
        Skep, StoppedServer, eventually, eventually_within,
        images::{flip_a_bit, images_with_template},
        serve, temp_dir,
    },
    memory_guard::SmallMachine,
    template::names_of_damaged,
};

/// Enough for keeper and server, and less than what a boot leaves free.
const LEFT_BYTES: u64 = 450 << 20;
/// Time limit of the first boot: a failed bake is tried again after a delay, which doubles with each failure.
const BOOTS_AGAIN: Duration = Duration::from_secs(600);

/// A full disk over a folder, until its drop.
struct FullDisk<'a>(&'a Path);

impl<'a> FullDisk<'a> {
    fn over(folder: &'a Path) -> Self {
        mount("skep-test", folder, "tmpfs", MountFlags::empty(), c"size=4k").unwrap();
        Self(folder)
    }
}

impl Drop for FullDisk<'_> {
    fn drop(&mut self) {
        // A bake may use it at this moment.
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// A start of a server. The drop kills it if it has not ended, so that it does not go on after a failed test.
struct Start(Child);

impl Start {
    /// Waits for its end.
    async fn ended(&mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the end of the start", async || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        ended.unwrap()
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process holds the guest memory of a template.
fn holds_template(process: u32) -> bool {
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.to_string_lossy().starts_with("/memfd:skep-ram"))
}

/// A VM that runs on after its server was stopped.
async fn vm_without_server(options: &[&str]) -> (u64, StoppedServer) {
    let skep = Skep::start_on(temp_dir(), options).await;
    let vm = skep.boot_one().await;
    (vm, skep.stop_and_leave_vms())
}

/// Waits until a VM is booted.
async fn boots_again(skep: &Skep) {
    let boots = async || skep.post("/api/swarm/boot", &json!({})).await.status == 201;
    eventually_within(BOOTS_AGAIN, "a boot", boots).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_run_on_while_the_machine_has_no_memory_for_the_base_template() {
    let machine = SmallMachine::new();
    // The guard would end the VM when less than its threshold is left.
    let options = ["--memory-guard", "off"];
    let skep = Skep::start_by(&machine.skep(), temp_dir(), |command| _ = command.args(options)).await;
    assert!(holds_template(skep.pid()), "the control: without VMs it is loaded at the start");
    let vm = skep.boot_one().await;
    let stopped = skep.stop_and_leave_vms();

    machine.leave_only(LEFT_BYTES);
    let skep = stopped.start_by(&machine.skep(), |command| _ = command.args(options)).await;
    assert_eq!(skep.output(vm, "echo lives").await, "lives");
    let refused = skep.post("/api/swarm/boot", &json!({})).await;
    let message = refused.refused(503, "no_capacity");
    assert!(message.contains("MiB of memory are available"), "{message}");
    assert!(!holds_template(skep.pid()), "it took memory that the machine does not have");

    machine.leave_all();
    boots_again(&skep).await;
    assert!(holds_template(skep.pid()));
    assert_eq!(skep.output(vm, "echo lives").await, "lives");
    drop(skep);
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_run_on_while_the_base_template_cannot_be_baked_or_is_damaged() {
    let (images, template) = images_with_template();
    let options = ["--image-dir", images.path().to_str().unwrap()];
    let (vm, stopped) = vm_without_server(&options).await;

    // The mount also hides the template, so that this start needs a new bake, as after an update.
    let folder = images.path().join("base");
    let full = FullDisk::over(&folder);
    let skep = stopped.start_with(&options).await;
    assert_eq!(skep.output(vm, "echo lives").await, "lives");
    let refused = skep.post("/api/swarm/boot", &json!({})).await;
    let message = refused.refused(409, "template_not_ready");
    assert!(message.contains("the bake of the template `base` failed and is tried again"), "{message}");
    assert!(!message.contains(images.path().to_str().unwrap()), "{message}");
    let log = skep.log();
    assert!(log.contains("no VM is booted before the template `base` is baked, which failed"), "{log}");

    drop(full);
    boots_again(&skep).await;
    assert_eq!(skep.output(vm, "echo lives").await, "lives");

    flip_a_bit(&template.join("root.erofs"));
    let refused = skep.post("/api/swarm/boot", &json!({})).await;
    let message = refused.refused(422, "template_damaged");
    assert!(message.contains("root.erofs") && message.contains("baked again"), "{message}");
    eventually("`base` among the damaged templates", async || names_of_damaged(&skep).await == ["base"])
        .await;
    assert_eq!(skep.output(vm, "echo lives").await, "lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_a_signal_or_its_templates_end_leaves_the_vms() {
    let (images, _) = images_with_template();
    let options = ["--image-dir", images.path().to_str().unwrap()];
    let (vm, stopped) = vm_without_server(&options).await;

    // No template of this size is baked.
    let mut start = serve(stopped.path(), &options);
    let mut start = Start(start.args(["--base-memory-mb", "192"]).spawn().unwrap());
    let log = stopped.path().join("test.log");
    eventually("the bake", async || fs::read_to_string(&log).unwrap().contains("bake: root file system"))
        .await;
    kill_process(Pid::from_child(&start.0), Signal::TERM).unwrap();
    assert_eq!(start.ended().await.code(), Some(128 + Signal::TERM.as_raw()));

    // The folder of templates cannot be read.
    let templates = stopped.path().join("templates");
    let _ = fs::remove_dir(&templates);
    fs::write(&templates, "").unwrap();
    let mut start = Start(serve(stopped.path(), &options).spawn().unwrap());
    assert!(!start.ended().await.success());
    fs::remove_file(&templates).unwrap();

    let skep = stopped.start_with(&options).await;
    assert_eq!(skep.output(vm, "echo lives").await, "lives");
}
