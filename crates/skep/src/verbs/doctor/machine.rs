//! Checks properties of the machine: KVM, swap, hyper-threads, clock.

use std::{fs, io, time::Duration};

use super::Finding;

/// The largest acceptable clock error: expiry of keys and times of tickets depend on the clock.
const MAX_CLOCK_ERROR: Duration = Duration::from_secs(1);

pub(super) fn findings() -> Vec<Finding> {
    vec![kvm(), swap(&fs::read_to_string("/proc/swaps").unwrap_or_default()), smt(), clock(read_clock())]
}

fn kvm() -> Finding {
    const CHECK: &str = "kvm";
    let way_out = "load the module (modprobe kvm_intel or kvm_amd), or use a machine that has virtualization";
    match fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Finding::ok(CHECK, "/dev/kvm can be opened; see `engine` for its speed"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Finding::warning(CHECK, "there is no /dev/kvm: VMs are emulated, and slower", way_out)
        }
        Err(error) => {
            Finding::warning(CHECK, format!("/dev/kvm cannot be opened: {error}"), "run `sudo skep doctor`")
        }
    }
}

/// Swap may write guest memory, including keys, to a disk, where it outlives the guest.
fn swap(table: &str) -> Finding {
    const CHECK: &str = "swap";
    let areas: Vec<&str> = table.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if areas.is_empty() {
        return Finding::ok(CHECK, "off: memory of VMs never reaches a disk");
    }
    let detail = format!("on ({}): memory of VMs may be written to disk", areas.join(", "));
    Finding::warning(CHECK, detail, "swapoff -a and remove it from /etc/fstab, or encrypt it")
}

/// Two VMs on the hyper-threads of one core can observe each other through the resources that they share.
fn smt() -> Finding {
    const CHECK: &str = "smt";
    match fs::read_to_string("/sys/devices/system/cpu/smt/active").map(|text| text.trim() == "1") {
        Ok(false) => Finding::ok(CHECK, "off: no two VMs share a core at the same time"),
        Ok(true) => Finding::warning(
            CHECK,
            "on: VMs on the threads of one core might spy on each other",
            "where accounts do not trust each other: echo off > /sys/devices/system/cpu/smt/control, or boot with nosmt",
        ),
        Err(_) => Finding::ok(CHECK, "the kernel reports no hyper-threads"),
    }
}

/// The synchronization state of the kernel's clock.
#[derive(Debug, Clone, Copy)]
struct Clock {
    synchronized: bool,
    max_error: Duration,
}

fn read_clock() -> io::Result<Clock> {
    // SAFETY: all zeros is a valid `timex`; `modes` 0 only reads.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local `timex` that outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    let most_off = Duration::from_micros(u64::try_from(timex.maxerror).unwrap_or(u64::MAX));
    Ok(Clock {
        synchronized: state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0,
        max_error: most_off,
    })
}

fn clock(reading: io::Result<Clock>) -> Finding {
    const CHECK: &str = "clock";
    let way_out = "run a time service: apt-get install systemd-timesyncd, or chrony";
    match reading {
        Err(error) => Finding::warning(CHECK, format!("its state cannot be read: {error}"), way_out),
        Ok(Clock { synchronized: false, .. }) => Finding::warning(
            CHECK,
            "the clock is not synchronized: keys may expire too early or too late",
            way_out,
        ),
        Ok(Clock { max_error: most_off, .. }) if most_off > MAX_CLOCK_ERROR => {
            Finding::warning(CHECK, format!("it may be off by {} s", most_off.as_secs()), way_out)
        }
        Ok(Clock { max_error: most_off, .. }) => {
            Finding::ok(CHECK, format!("synchronized, off by {} ms at the most", most_off.as_millis()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn swap_is_on_where_an_area_is_listed() {
        let head = "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n";
        assert_eq!(swap(head).state, State::Ok);
        let found = swap(&format!("{head}/dev/sda2   partition 1 0 -2\n/swap file 1 0 -3\n"));
        assert_eq!(found.state, State::Warning);
        assert!(found.detail.contains("/dev/sda2, /swap"), "{found:?}");
    }

    #[test]
    fn an_unsynchronized_clock_is_a_warning() {
        let state_of = |synchronized, seconds| {
            clock(Ok(Clock { synchronized, max_error: Duration::from_secs(seconds) })).state
        };
        assert_eq!(
            (state_of(true, 0), state_of(true, 9), state_of(false, 0)),
            (State::Ok, State::Warning, State::Warning)
        );
        assert_eq!(clock(Err(io::Error::from_raw_os_error(libc::EPERM))).state, State::Warning);
        read_clock().unwrap();
    }
}
