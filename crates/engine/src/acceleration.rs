//! Selection of hardware or software acceleration, by a measurement of KVM.
//!
//! In some clouds /dev/kvm exists, but the outer hypervisor interprets every instruction of a nested guest. QEMU's own
//! emulator is many times faster then.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use skep_api::swarm::Isolation;

/// Iterations of the measured loop, two guest instructions each. So many that the entry into the guest and the exit, some tens of
/// microseconds at most, are a small part of the limit; interpreted, they are a few milliseconds of each start.
const ROUNDS: u16 = 5_000;
/// A native instruction takes about 1 ns, an interpreted one several hundred.
const MAX_NATIVE_INSTRUCTION_TIME: Duration = Duration::from_nanos(50);
/// Other load on the machine only slows measurements down, so the fastest of several counts.
const MAX_MEASUREMENTS: usize = 5;
const PAGE_BYTES: usize = 4096;

/// The selected acceleration, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceleration {
    pub kvm: bool,
    /// The measurement and the conclusion.
    pub reason: String,
}

impl Acceleration {
    /// The name of the accelerator in QEMU and in reports.
    pub fn name(&self) -> &'static str {
        if self.kvm { "kvm" } else { "tcg" }
    }

    pub fn isolation(&self) -> Isolation {
        if self.kvm { Isolation::Hardware } else { Isolation::Emulated }
    }
}

/// Measures a small loop in a KVM guest.
pub fn measure(device: &Path) -> Acceleration {
    match fastest(|| measure_instruction_time(device)) {
        Ok(each) if each <= MAX_NATIVE_INSTRUCTION_TIME => Acceleration {
            kvm: true,
            reason: format!("KVM runs guests natively: {} ns an instruction", each.as_nanos()),
        },
        Ok(each) => Acceleration {
            kvm: false,
            reason: format!(
                "{} exists, but takes {} ns for a guest instruction (native: about 1): software emulation is faster",
                device.display(),
                each.as_nanos()
            ),
        },
        Err(reason) => Acceleration { kvm: false, reason: format!("software emulation: {reason}") },
    }
}

/// The fastest of several measurements. Stops early at a native one.
fn fastest(mut time: impl FnMut() -> Result<Duration, String>) -> Result<Duration, String> {
    let mut fastest = time()?;
    for _ in 1..MAX_MEASUREMENTS {
        if fastest <= MAX_NATIVE_INSTRUCTION_TIME {
            break;
        }
        fastest = fastest.min(time()?);
    }
    Ok(fastest)
}

fn measure_instruction_time(device: &Path) -> Result<Duration, String> {
    let path =
        std::ffi::CString::new(device.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    let kvm = Kvm::new_with_path(&path)
        .map_err(|error| format!("{} cannot be opened: {error}", device.display()))?;
    let failed = |error: kvm_ioctls::Error| format!("{} does not work: {error}", device.display());
    let vm = kvm.create_vm().map_err(failed)?;
    let page = Page::map().map_err(|error| format!("no memory to measure with: {error}"))?;
    page.write(&counting_loop());
    let timed = run_loop(&vm, &page).map_err(failed);
    // Dropped before the page, which is its memory.
    drop(vm);
    timed.map(|elapsed| elapsed / (u32::from(ROUNDS) * 2))
}

/// `mov cx, ROUNDS; again: dec cx; jnz again; hlt` in real mode.
fn counting_loop() -> [u8; 7] {
    let [low, high] = ROUNDS.to_le_bytes();
    [0xb9, low, high, 0x49, 0x75, 0xfd, 0xf4]
}

fn run_loop(vm: &VmFd, page: &Page) -> Result<Duration, kvm_ioctls::Error> {
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0x1000,
        memory_size: PAGE_BYTES as u64,
        userspace_addr: page.address as u64,
    };
    // SAFETY: the region is exactly the page's mapping, which outlives the VM's descriptor.
    unsafe { vm.set_user_memory_region(region)? };
    let mut vcpu = vm.create_vcpu(0)?;
    set_entry_point(&vcpu, 0x1000)?;
    let begun = Instant::now();
    match vcpu.run()? {
        VcpuExit::Hlt => Ok(begun.elapsed()),
        _ => Err(kvm_ioctls::Error::new(rustix::io::Errno::IO.raw_os_error())),
    }
}

fn set_entry_point(vcpu: &VcpuFd, address: u64) -> Result<(), kvm_ioctls::Error> {
    let mut special = vcpu.get_sregs()?;
    special.cs.base = 0;
    special.cs.selector = 0;
    vcpu.set_sregs(&special)?;
    let mut registers = vcpu.get_regs()?;
    registers.rip = address;
    // Bit 1 is always set (Intel SDM, volume 1, 3.4.3).
    registers.rflags = 2;
    vcpu.set_regs(&registers)
}

/// One page of memory for the guest.
struct Page {
    address: *mut std::ffi::c_void,
}

impl Page {
    fn map() -> std::io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address chosen by the kernel affects no existing memory.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { address })
    }

    fn write(&self, code: &[u8; 7]) {
        // SAFETY: the mapping is one page long, writable, and not shared with other code.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), self.address.cast(), code.len()) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference into it exists. A failure only leaks the page.
        let _ = unsafe { munmap(self.address, PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_selects_emulation_with_the_reason() {
        let acceleration = measure(Path::new("/nowhere/kvm"));
        assert!(!acceleration.kvm);
        assert!(acceleration.reason.contains("/nowhere/kvm"), "{}", acceleration.reason);
    }

    #[test]
    fn the_fastest_measurement_counts() {
        let took = |nanoseconds: &[u64]| {
            let mut left = nanoseconds.iter().copied().map(Duration::from_nanos);
            let fastest = fastest(|| left.next().ok_or_else(|| "measured too often".to_owned()));
            (fastest.map(|each| each.as_nanos()), left.len())
        };
        assert_eq!(took(&[600, 700, 1, 1]), (Ok(1), 1));
        assert_eq!(took(&[1, 600]), (Ok(1), 1));
        assert_eq!(took(&[600, 650, 700, 590, 610]), (Ok(590), 0));
    }

    #[test]
    fn a_device_other_than_kvm_selects_emulation() {
        let acceleration = measure(Path::new("/dev/null"));
        assert!(!acceleration.kvm);
        assert_eq!(acceleration.isolation(), Isolation::Emulated);
    }
}
