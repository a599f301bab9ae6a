//! Deltas that VMs map. They are in memory files, which do not count as anonymous memory of a control group. VMs may be the only
//! holders: the capture of a fork is dropped when its VMs are launched, and the template of a pause when its VM is resumed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    os::unix::fs::MetadataExt,
};

use serde::{Deserialize, Serialize};
use skep_engine::Delta;

use crate::disk_layer::FileId;

/// The delta that the guest of a VM continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MappedDelta {
    /// The file with the pages. VMs that share the delta have the same one.
    pub(crate) file: FileId,
    /// What its files took when the VM was launched, in bytes. They are sealed.
    pub(crate) bytes: u64,
}

impl MappedDelta {
    /// # Errors
    /// The limit of open descriptors is reached.
    pub(crate) fn of(delta: &Delta) -> io::Result<Self> {
        let (data, pages) = (File::from(delta.data.try_clone()?), File::from(delta.pages.try_clone()?));
        // stat(2) counts blocks of 512 bytes.
        let bytes = (data.metadata()?.blocks() + pages.metadata()?.blocks()) * 512;
        Ok(Self { file: FileId::of(&data)?, bytes })
    }
}

/// How many VMs map each delta.
#[derive(Debug)]
pub(crate) struct DeltaHolders(BTreeMap<FileId, u64>);

impl DeltaHolders {
    /// Counts the VMs with these deltas.
    pub(crate) fn count(deltas: impl IntoIterator<Item = MappedDelta>) -> Self {
        let mut vms = BTreeMap::new();
        for delta in deltas {
            *vms.entry(delta.file).or_insert(0) += 1;
        }
        Self(vms)
    }

    /// The part of a delta that counts for one of its VMs, in bytes, rounded up.
    pub(crate) fn part_bytes(&self, delta: MappedDelta) -> u64 {
        delta.bytes.div_ceil(self.0.get(&delta.file).copied().unwrap_or(1))
    }
}

/// What the deltas of VMs take, in bytes, each counted once and without those that count elsewhere.
pub(crate) fn deltas_bytes(
    of_vms: impl IntoIterator<Item = MappedDelta>,
    counted_elsewhere: &BTreeSet<FileId>,
) -> u64 {
    let mut by_file: BTreeMap<FileId, u64> =
        of_vms.into_iter().map(|delta| (delta.file, delta.bytes)).collect();
    by_file.retain(|file, _| !counted_elsewhere.contains(file));
    by_file.into_values().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delta_counts_in_equal_parts_for_its_vms_and_once_for_all_of_them() {
        let [one, other] =
            [(1, 7), (2, 100)].map(|(inode, bytes)| MappedDelta { file: FileId::fake(inode), bytes });
        let holders = DeltaHolders::count([one, other, one]);
        assert_eq!((holders.part_bytes(one), holders.part_bytes(other)), (4, 100));
        let bytes =
            |elsewhere: &[FileId]| deltas_bytes([one, other, one], &elsewhere.iter().copied().collect());
        assert_eq!(bytes(&[]), 107);
        assert_eq!(bytes(&[other.file, FileId::fake(3)]), 7);
        assert_eq!(bytes(&[one.file, other.file]), 0);
    }

    #[test]
    fn a_delta_takes_what_the_data_of_both_files_takes() {
        let file = |bytes: &[u8]| {
            let file = skep_sealed_memory::create("test", rustix::fs::Mode::from_raw_mode(0o444)).unwrap();
            io::Write::write_all(&mut &file, bytes).unwrap();
            file.set_len(1 << 20).unwrap();
            file
        };
        let (data, pages) = (file(&[1; 4097]), file(&[1; 8]));
        let id = FileId::of(&data).unwrap();
        let mapped = MappedDelta::of(&Delta { data: data.into(), pages: pages.into() }).unwrap();
        assert_eq!(mapped, MappedDelta { file: id, bytes: 3 * 4096 });
    }
}
