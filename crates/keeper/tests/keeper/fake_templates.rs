//! Templates whose files are short texts, and which are damaged on demand.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};

use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_engine::Delta;
use skep_keeper::{AdmitBuild, AdmitLoad, CapturedFiles, FileId, OpenTemplate, Templates};
use skep_keeper_protocol::{TemplateState, TemplateStatus};

/// Templates that are damaged while the file `damage` exists.
pub(crate) struct FakeTemplates {
    pub(crate) damage: PathBuf,
}

/// Names of the templates that tests launch, in the order of their ids.
const TEMPLATES: [&str; 5] = ["base", "unknown", "missing-program", "no-layer", "snapshot"];

pub(crate) fn template_id(name: &str) -> TemplateId {
    let at = TEMPLATES.iter().position(|known| *known == name).unwrap();
    format!("tpl_{at:026}").parse().unwrap()
}

impl Templates for FakeTemplates {
    fn unload_unused(&self, _: &BTreeSet<TemplateId>) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn deltas(&self) -> Vec<FileId> {
        Vec::new()
    }

    fn open(&self, template: TemplateId, _: &AdmitLoad<'_>) -> Result<OpenTemplate, Failure> {
        let name = *TEMPLATES.iter().find(|name| template_id(name) == template).unwrap();
        if name == "unknown" {
            return Err(Failure::new(ErrorCode::UnknownTemplate, "there is no template `unknown`"));
        }
        let layer = if name == "no-layer" { unreadable(&file("layer")) } else { file("layer") };
        // The amount of memory selects the behaviour of the launcher.
        let memory_mb = if name == "missing-program" { 1 } else { 64 };
        let [ram, kernel, initrd, root, state] = ["ram", "kernel", "initrd", "root", "state"].map(file);
        Ok(OpenTemplate {
            key: "key".to_owned(),
            edition: 0,
            vcpus: 1,
            memory_mb,
            ram,
            ram_sha256: None,
            kernel,
            initrd,
            root,
            state,
            layer,
            delta: (name == "snapshot").then(delta),
            origin: None,
        })
    }

    fn begin_builds(&self, _: AdmitBuild) {}

    fn build(&self, _: TemplateId, _: TemplateId, _: GuestSize) -> Result<(), Failure> {
        Ok(())
    }

    fn boot_disk(&self, _: TemplateId, _: TemplateId) -> Result<(), Failure> {
        unreachable!("no test boots disks")
    }

    fn status(&self, template: TemplateId) -> Option<TemplateStatus> {
        (template == template_id("base")).then(|| TemplateStatus {
            template,
            parent: None,
            size: GuestSize { memory_mb: 64, vcpus: 1, disk_mb: 64 },
            state: TemplateState::Ready { key: "key".to_owned() },
            size_bytes: 0,
            own_bytes: 0,
        })
    }

    fn store(&self, _: TemplateId, _: CapturedFiles<'_>) -> Result<TemplateStatus, Failure> {
        unreachable!("no test stores captures")
    }

    fn check_copy(&self, _: TemplateId, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    fn list(&self) -> Vec<TemplateStatus> {
        Vec::new()
    }

    fn remove(&self, template: TemplateId) -> Result<(), Failure> {
        Err(Failure::unknown_template(template.to_string()))
    }

    fn check(&self, template: TemplateId, _edition: u64) -> Result<(), Failure> {
        if self.damage.exists() {
            let message = format!("the template {template} is damaged");
            return Err(Failure::new(ErrorCode::TemplateDamaged, message));
        }
        Ok(())
    }
}

fn file(text: &str) -> OwnedFd {
    let file = File::from(rustix::fs::memfd_create("part", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    (&file).write_all(text.as_bytes()).unwrap();
    io::Seek::rewind(&mut &file).unwrap();
    file.into()
}

/// The delta of the template `snapshot`. Its two files have one page each.
fn delta() -> Delta {
    static FILES: OnceLock<[OwnedFd; 2]> = OnceLock::new();
    let [data, pages] = FILES.get_or_init(|| ["data", "pages"].map(file));
    Delta { data: data.try_clone().unwrap(), pages: pages.try_clone().unwrap() }
}

/// The same file, opened write-only.
fn unreadable(file: &OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().write(true).open(path).unwrap().into()
}
