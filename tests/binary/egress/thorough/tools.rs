//! Tools that take long in an emulated guest.

use crate::{
    egress::tools::{CONTENT, run_with, trust},
    harness::Skep,
};

#[test]
fn git_pip_venv_and_apt_work_as_people_know_them() {
    run_with(CONTENT, "", async |skep, vm, authority| {
        trust(&skep, vm, &authority).await;
        let clone = "cd /root && git clone -q https://code.test/project.git && cat project/file";
        assert_eq!(skep.output(vm, clone).await, "cloned");
        assert_python_packages(&skep, vm).await;

        let update = "echo 'deb [trusted=yes] https://packages.test/debian ./' > /etc/apt/sources.list && \
            apt-get update -o Dir::Etc::sourceparts=- 2>&1";
        let updated = skep.output(vm, update).await;
        assert!(updated.contains("https://packages.test/debian"), "{updated}");
    });
}

/// Asserts that pip installs a package into a virtual environment, and for all programs.
async fn assert_python_packages(skep: &Skep, vm: u64) {
    let install = "pip install -q --root-user-action=ignore --index-url https://packages.test/simple made";
    let import = "python3 -c 'import made; print(made.value)'";
    // By a call of its own, because it takes long in an emulated guest.
    skep.output(vm, "cd /root && python3 -m venv venv").await;
    let inside = format!("cd /root && . venv/bin/activate && {install} && {import}");
    assert_eq!(skep.output(vm, &inside).await, "installed");
    let outside = skep.exec(vm, import).await;
    assert_ne!(outside["exit_code"], 0, "the environment is one of its own: {outside}");
    assert_eq!(skep.output(vm, &format!("{install} && {import}")).await, "installed");
}
