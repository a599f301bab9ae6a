//! Persistent records of VMs, from which the next keeper takes them over.

use std::{
    fs::{self, File},
    io::{self, Write},
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use skep_api::{AccountId, TemplateId, VmId, egress::EgressPolicy, swarm::BASE_TEMPLATE};
use skep_keeper_protocol::VmEgress;

use crate::{
    DataDir, Error, OpenTemplate, data_dir::remove_file, disk_layer::FileId, memory::MappedDelta,
    process_id::ProcessId,
};

/// Version of the record format. A VM with another version is ended, because its resources are unknown. A field with a
/// default does not need another version.
const VERSION: u32 = 1;

/// The part of a record that every version has.
#[derive(Deserialize)]
struct RecordVersion {
    version: u32,
}

/// Why a record is not used.
#[derive(Debug, thiserror::Error)]
enum UnusableRecord {
    #[error("it has version {0}, and this skep reads version {VERSION}")]
    OtherVersion(u32),
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    // It would describe the wrong VM.
    #[error("it is a copy of the record of {0}")]
    OtherVm(VmId),
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// A VM's record. It exists before any resource of the VM that outlives the keeper, and until the last one is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// Boot id of the machine when the VM was launched.
    pub(crate) boot_id: String,
    pub(crate) vm: VmId,
    pub(crate) uid: u32,
    /// The tap's name, for diagnosis only.
    pub(crate) tap: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) mac: [u8; 6],
    #[serde(deserialize_with = "template_of_record")]
    pub(crate) template: TemplateId,
    /// Whether the VM outlives the server that launched it.
    pub(crate) committed: bool,
    /// Whether the guest may reach the API. Absent in records of earlier releases.
    #[serde(default)]
    pub(crate) reaches_api: bool,
    /// What the guest may connect to. Absent in records of earlier releases.
    #[serde(default)]
    egress: EgressPolicy,
    /// The account of the VM, once its policy was set. Absent in records of earlier releases.
    #[serde(default)]
    account: Option<AccountId>,
    /// `None` until the VMM runs.
    pub(crate) vmm: Option<VmmRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VmmRecord {
    pub(crate) process: ProcessId,
    pub(crate) template_key: String,
    pub(crate) vcpus: u32,
    pub(crate) memory_mb: u64,
    pub(crate) layer: FileId,
    /// The shared root file system. Absent in records of earlier releases, whose VMs cannot be copied.
    #[serde(default)]
    pub(crate) root: Option<FileId>,
    /// The other files. Absent in records of earlier releases.
    #[serde(default)]
    pub(crate) inherited: Option<InheritedFiles>,
    /// `None` for a guest of a baked template. Absent in records of earlier releases.
    #[serde(default)]
    pub(crate) delta: Option<MappedDelta>,
    /// The checksum of the guest memory of its template, which another bake from the same inputs does not have. Absent in records
    /// of earlier releases.
    #[serde(default)]
    pub(crate) ram_sha256: Option<String>,
}

/// The files that a VMM was launched with and that copies of its VM share, without the root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InheritedFiles {
    pub(crate) ram: FileId,
    pub(crate) kernel: FileId,
    pub(crate) initrd: FileId,
    /// The runs of the delta. `None` for a guest of a baked template.
    pub(crate) pages: Option<FileId>,
}

impl InheritedFiles {
    /// # Errors
    /// The limit of open descriptors is reached.
    pub(crate) fn of(template: &OpenTemplate) -> io::Result<Self> {
        let pages = template.delta.as_ref().map(|delta| id_of(&delta.pages)).transpose()?;
        let [ram, kernel, initrd] = [&template.ram, &template.kernel, &template.initrd].map(id_of);
        Ok(Self { ram: ram?, kernel: kernel?, initrd: initrd?, pages })
    }
}

fn id_of(file: &OwnedFd) -> io::Result<FileId> {
    FileId::of(&File::from(file.try_clone()?))
}

/// Records of earlier releases name the only template that there was.
fn template_of_record<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TemplateId, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == BASE_TEMPLATE { Ok(TemplateId::BASE) } else { text.parse().map_err(D::Error::custom) }
}

impl Record {
    pub(crate) fn egress(&self) -> VmEgress {
        VmEgress { policy: self.egress.clone(), account: self.account }
    }

    pub(crate) fn set_egress(&mut self, egress: VmEgress) {
        self.egress = egress.policy;
        self.account = egress.account;
    }

    /// The record of a VM that is about to be launched on this port.
    pub(crate) fn pending(
        boot_id: String,
        vm: VmId,
        uid: u32,
        port: &skep_network::Port,
        template: TemplateId,
    ) -> Self {
        let skep_network::Port { name, ip, mac, .. } = port;
        let (tap, ip, mac) = (name.clone(), *ip, *mac);
        Self {
            version: VERSION,
            boot_id,
            vm,
            uid,
            tap,
            ip,
            mac,
            template,
            committed: false,
            reaches_api: false,
            egress: EgressPolicy::None,
            account: None,
            vmm: None,
        }
    }
}

/// The records of a data directory, one file each.
#[derive(Debug)]
pub(crate) struct Records(PathBuf);

impl Records {
    pub(crate) fn of(data_dir: &DataDir) -> Self {
        Self(data_dir.records())
    }

    /// Atomic. Not synced to disk: a power cut ends the VM as well.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Error> {
        let path = self.path(record.vm);
        let new = path.with_extension("new");
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec_pretty(record)?;
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&new);
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull,
                _ => Error::io(path.display().to_string())(error),
            }
        })
    }

    /// Removes a record, if it exists.
    pub(crate) fn remove(&self, vm: VmId) -> Result<(), Error> {
        remove_file(&self.path(vm))
    }

    /// All usable records. The reason why another one is not used is logged.
    ///
    /// # Errors
    /// The folder cannot be read. VMs may run then.
    pub(crate) fn read(&self) -> Result<Vec<Record>, Error> {
        let records = self.files()?.into_iter();
        let records = records.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        Ok(records
            .filter_map(|path| {
                let unusable = |reason: &UnusableRecord| {
                    let path = path.display();
                    tracing::warn!(%path, %reason, "the record {path} is not used, and its VM ends: {reason}");
                };
                self.read_one(&path).inspect_err(unusable).ok()
            })
            .collect())
    }

    fn read_one(&self, path: &Path) -> Result<Record, UnusableRecord> {
        let text = fs::read(path)?;
        // Before the rest, which another version may have changed.
        let RecordVersion { version } = serde_json::from_slice(&text)?;
        if version != VERSION {
            return Err(UnusableRecord::OtherVersion(version));
        }
        let record: Record = serde_json::from_slice(&text)?;
        if self.path(record.vm) == path { Ok(record) } else { Err(UnusableRecord::OtherVm(record.vm)) }
    }

    /// Whether no VM is on record. `false` if that is not known.
    pub(crate) fn is_empty(&self) -> bool {
        self.files().is_ok_and(|files| files.is_empty())
    }

    /// Removes all records but these, invalid ones included.
    pub(crate) fn remove_all_but(&self, kept: impl Fn(VmId) -> bool) -> Result<(), Error> {
        for path in self.files()? {
            let vm = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")?.parse().ok());
            if !vm.is_some_and(&kept) {
                remove_file(&path)?;
            }
        }
        Ok(())
    }

    fn path(&self, vm: VmId) -> PathBuf {
        self.0.join(format!("{vm}.json"))
    }

    /// Empty if the folder does not exist.
    fn files(&self) -> Result<Vec<PathBuf>, Error> {
        let list = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(&self.0)?.map(|entry| entry.map(|entry| entry.path())).collect()
        };
        match list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(Error::io(self.0.display().to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(vm: VmId) -> Record {
        Record {
            version: VERSION,
            boot_id: "boot".to_owned(),
            vm,
            uid: 7,
            tap: "vm0".to_owned(),
            ip: Ipv4Addr::LOCALHOST,
            mac: [2, 0, 0, 0, 0, 1],
            template: TemplateId::generate(),
            committed: true,
            reaches_api: true,
            egress: EgressPolicy::listing(&["api.example.com"]).unwrap(),
            account: Some(AccountId::generate()),
            vmm: None,
        }
    }

    #[test]
    fn a_record_is_read_back_and_invalid_ones_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path()).unwrap();
        // Without root there are no VMs, and so no folder of their records.
        fs::create_dir_all(data_dir.records()).unwrap();
        let records = Records::of(&data_dir);
        assert!(records.is_empty());
        let [kept, copied, newer] = [(); 3].map(|()| record(VmId::generate()));
        records.write(&kept).unwrap();
        fs::write(records.path(newer.vm), r#"{"version": 2, "layers": []}"#).unwrap();
        fs::copy(records.path(kept.vm), records.path(copied.vm)).unwrap();
        fs::write(data_dir.records().join("half.new"), "{").unwrap();
        fs::write(data_dir.records().join("text.json"), "hello").unwrap();
        assert_eq!(records.read().unwrap(), std::slice::from_ref(&kept));
        let text = fs::read_to_string(records.path(kept.vm)).unwrap();
        let earlier = text.replace(&kept.template.to_string(), BASE_TEMPLATE);
        assert_ne!(text, earlier);
        fs::write(records.path(kept.vm), earlier).unwrap();
        assert_eq!(records.read().unwrap(), [Record { template: TemplateId::BASE, ..kept.clone() }]);
        let account = format!("\"account\": \"{}\",", kept.account.unwrap());
        assert!(text.contains(&account), "{text}");
        fs::write(records.path(kept.vm), text.replace(&account, "")).unwrap();
        assert_eq!(records.read().unwrap(), [Record { account: None, ..kept.clone() }]);
        let reason = |vm| records.read_one(&records.path(vm)).unwrap_err().to_string();
        assert_eq!(reason(newer.vm), "it has version 2, and this skep reads version 1");
        assert_eq!(reason(copied.vm), format!("it is a copy of the record of {}", kept.vm));

        records.remove_all_but(|vm| vm == kept.vm).unwrap();
        assert_eq!(fs::read_dir(data_dir.records()).unwrap().count(), 1);
        records.remove(kept.vm).unwrap();
        records.remove(kept.vm).unwrap();
        assert!(records.is_empty());
    }

    #[test]
    fn records_that_cannot_be_read_are_not_taken_for_no_vms() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records(dir.path().join("vms"));
        // No VM was ever launched.
        assert!(records.is_empty() && records.read().unwrap().is_empty());
        // It leads to itself, so that the kernel refuses to read it.
        std::os::unix::fs::symlink("vms", &records.0).unwrap();
        assert!(!records.is_empty() && records.read().is_err());
        assert!(records.remove_all_but(|_| false).is_err());
    }
}
