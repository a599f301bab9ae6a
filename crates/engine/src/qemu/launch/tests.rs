use std::{fs::File, num::NonZero, path::Path, sync::Arc};

use skep_api::swarm::{EngineReport, Isolation};

use super::*;
use crate::{
    launch::{Delta, Descriptors, inherited},
    qemu::{preload::Preload, program::Program},
};

/// The complete command line of a VMM, one argument per line. A saved state only loads into the same devices.
const PINNED: &str = r#"-nodefaults
-no-user-config
-no-reboot
-display
none
-sandbox
on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-global
migration.send-configuration=off
-machine
microvm,acpi=on,isa-serial=on,suppress-vmdesc=on,memory-backend=ram
-accel
<accel>
-cpu
<cpu>
-smp
2
-m
128M
-object
memory-backend-file,id=ram,size=128M,mem-path=/proc/self/fd/7,share=<share>,merge=off
-kernel
/proc/self/fd/8
-initrd
/proc/self/fd/9
-append
console=ttyS0 quiet loglevel=4 panic=-1 reboot=t ipv6.disable=1 random.trust_cpu=off init_on_free=1<emulated>
-chardev
socket,id=console,fd=5,server=on,wait=off
-serial
chardev:console
-chardev
socket,id=monitor,fd=3,server=on,wait=off
-mon
chardev=monitor,mode=control
-add-fd
fd=10,set=1
-add-fd
fd=11,set=2
-object
{"id":"disks","limits":{},"qom-type":"throttle-group"}
-blockdev
driver=throttle,node-name=root,throttle-group=disks,read-only=on,file.driver=raw,file.read-only=on,file.file.driver=file,file.file.filename=/dev/fdset/1,file.file.locking=off
-blockdev
driver=throttle,node-name=layer,throttle-group=disks,read-only=off,file.driver=raw,file.read-only=off,file.file.driver=file,file.file.filename=/dev/fdset/2,file.file.locking=off
-device
virtio-blk-device,drive=root,rerror=report,werror=report
-device
virtio-blk-device,drive=layer,rerror=report,werror=report
-netdev
tap,id=net,fd=6
-device
virtio-net-device,netdev=net,mac=02:00:0a:00:00:ff
-chardev
socket,id=agent,fd=4,server=on,wait=off
-device
virtio-serial-device,max_ports=2
-device
virtserialport,chardev=agent,name=skep.agent
-blockdev
driver=null-co,node-name=spare0,size=1099511627776,read-zeroes=on
-device
virtio-blk-device,drive=spare0,rerror=report,werror=report
-blockdev
driver=null-co,node-name=spare1,size=1099511627776,read-zeroes=on
-device
virtio-blk-device,drive=spare1,rerror=report,werror=report
-blockdev
driver=null-co,node-name=spare2,size=1099511627776,read-zeroes=on
-device
virtio-blk-device,drive=spare2,rerror=report,werror=report
-blockdev
driver=null-co,node-name=spare3,size=1099511627776,read-zeroes=on
-device
virtio-blk-device,drive=spare3,rerror=report,werror=report"#;

/// The same, with the parts that depend on acceleration and purpose.
fn pinned(accel: &str, cpu: &str, share: &str, emulated: &str) -> Vec<String> {
    let values = [("<accel>", accel), ("<cpu>", cpu), ("<share>", share), ("<emulated>", emulated)];
    let text = values.iter().fold(PINNED.to_owned(), |text, (name, value)| text.replace(name, value));
    text.lines().map(str::to_owned).collect()
}

fn qemu(kvm: bool) -> Qemu {
    let report = EngineReport {
        name: "qemu 7.2".to_owned(),
        accel: "of no matter here".to_owned(),
        isolation: Isolation::Emulated,
        reason: String::new(),
    };
    let tsc_khz = (!kvm).then_some(2_596_100);
    let preload = Some(Arc::new(Preload::load(Path::new("/usr/bin/python3")).unwrap()));
    let program = Arc::new(Program::not_probed("/usr/bin/python3", "7.2"));
    Qemu { program, kvm, tsc_khz, report, preload }
}

fn command(kvm: bool, purpose: Purpose) -> VmmCommand {
    limited(kvm, purpose, DiskLimits::default())
}

fn limited(kvm: bool, purpose: Purpose, disk_limits: DiskLimits) -> VmmCommand {
    qemu(kvm).command(spec(purpose, disk_limits)).unwrap()
}

fn spec(purpose: Purpose, disk_limits: DiskLimits) -> LaunchSpec {
    let some = || OwnedFd::from(File::open("/dev/null").unwrap());
    LaunchSpec {
        vcpus: 2,
        memory_mb: 128,
        mac: [0x02, 0, 0x0a, 0, 0, 0xff],
        disk_limits,
        purpose,
        descriptors: Descriptors {
            monitor: some(),
            agent: some(),
            console: some(),
            tap: some(),
            ram: some(),
            kernel: some(),
            initrd: some(),
            root: some(),
            layer: some(),
            delta: None,
        },
    }
}

/// The values of an option, in order.
fn values<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
    let pairs = arguments.windows(2).filter(|pair| pair[0] == option);
    pairs.map(|pair| pair[1].as_str()).collect()
}

const EVERY: [(bool, Purpose); 4] =
    [(false, Purpose::Bake), (false, Purpose::Restore), (true, Purpose::Bake), (true, Purpose::Restore)];

#[test]
fn a_bake_has_exactly_these_arguments() {
    assert_eq!(
        command(false, Purpose::Bake).arguments,
        pinned("tcg,tb-size=64", "max,-erms", "on", " norandmaps tsc_early_khz=2596100 tsc=reliable")
    );
    assert_eq!(command(true, Purpose::Bake).arguments, pinned("kvm", "host", "on", ""));
}

#[test]
fn a_restore_has_those_of_its_bake_and_waits_with_private_memory() {
    let waits = ["-incoming", "defer", "-S"].map(str::to_owned);
    let wanted = |pinned: Vec<String>| [pinned.as_slice(), waits.as_slice()].concat();
    let restore = |kvm| command(kvm, Purpose::Restore).arguments;
    assert_eq!(restore(false), wanted(pinned("tcg,tb-size=64", "max,-erms", "off", " norandmaps")));
    assert_eq!(restore(true), wanted(pinned("kvm", "host", "off", "")));
}

/// Other words here make all snapshots outdated.
#[test]
fn a_saved_state_depends_on_these_words() {
    let wanted = |cpu: &str| {
        format!(
            "-global migration.send-configuration=off
-machine microvm,acpi=on,isa-serial=on,suppress-vmdesc=on,memory-backend=ram
-cpu {cpu}
-serial chardev:console
-device virtio-blk-device,drive=root,rerror=report,werror=report
-device virtio-blk-device,drive=layer,rerror=report,werror=report
-device virtio-net-device,netdev=net,mac=00:00:00:00:00:00
-device virtio-serial-device,max_ports=2
-device virtserialport,chardev=agent,name=skep.agent
-device virtio-blk-device,drive=spare0,rerror=report,werror=report
-device virtio-blk-device,drive=spare1,rerror=report,werror=report
-device virtio-blk-device,drive=spare2,rerror=report,werror=report
-device virtio-blk-device,drive=spare3,rerror=report,werror=report"
        )
    };
    assert_eq!(qemu(false).device_words(), wanted("max,-erms"));
    assert_eq!(qemu(true).device_words(), wanted("host"));
}

#[test]
fn the_files_of_a_snapshot_have_the_numbers_by_which_a_copy_finds_them() {
    let mut spec = spec(Purpose::Restore, DiskLimits::default());
    let file = |size: u64| -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.into()
    };
    spec.descriptors.ram = file(1);
    spec.descriptors.kernel = file(2);
    spec.descriptors.initrd = file(3);
    spec.descriptors.delta = Some(Delta { data: file(4), pages: file(5) });
    let command = qemu(false).command(spec).unwrap();
    let variable = |name: &str| {
        let (_, value) = command.environment.iter().find(|(key, _)| key == name).unwrap();
        value.parse::<i32>().unwrap()
    };
    assert_eq!(variable("SKEP_RAM_FD"), inherited::RAM);
    assert_eq!(variable("SKEP_DELTA_FD"), inherited::DELTA);
    assert_eq!(variable("SKEP_PAGES_FD"), inherited::PAGES);
    let numbers = [inherited::RAM, inherited::KERNEL, inherited::INITRD, inherited::DELTA, inherited::PAGES];
    for (number, size) in numbers.into_iter().zip(1..) {
        let file = &command.descriptors[usize::try_from(number - FIRST_FD).unwrap()];
        let found = File::from(file.try_clone().unwrap()).metadata().unwrap().len();
        assert_eq!(found, size, "{number}");
    }
}

/// Both disks share the limits, since the shared root too may have to be read from the host's disk.
#[test]
fn limits_of_the_disks_change_the_group_of_their_filter_and_nothing_else() {
    let limits =
        |bytes, operations| DiskLimits { bytes: NonZero::new(bytes), operations: NonZero::new(operations) };
    for (limits, wanted) in [
        (limits(7, 0), r#"{"bps-total":7,"bps-total-max":7}"#),
        (limits(0, 9), r#"{"iops-total":9,"iops-total-max":9}"#),
        (limits(7, 9), r#"{"bps-total":7,"bps-total-max":7,"iops-total":9,"iops-total-max":9}"#),
    ] {
        let arguments = limited(false, Purpose::Restore, limits).arguments;
        let unlimited = command(false, Purpose::Restore).arguments;
        let differences: Vec<_> =
            unlimited.iter().zip(&arguments).filter(|(one, other)| one != other).collect();
        let [(_, group)] = differences.as_slice() else { panic!("{differences:?}") };
        assert_eq!(**group, format!(r#"{{"id":"disks","limits":{wanted},"qom-type":"throttle-group"}}"#));
        assert_eq!(arguments.len(), unlimited.len());
    }
}

#[test]
fn a_guest_has_these_devices_and_no_others() {
    for (kvm, purpose) in EVERY {
        let arguments = command(kvm, purpose).arguments;
        let mut devices: Vec<&str> = values(&arguments, "-device");
        devices.extend(values(&arguments, "-serial"));
        let kinds: Vec<&str> =
            devices.iter().map(|device| device.split([',', ':']).next().unwrap()).collect();
        let wanted = [
            "virtio-blk-device",
            "virtio-blk-device",
            "virtio-net-device",
            "virtio-serial-device",
            "virtserialport",
            "virtio-blk-device",
            "virtio-blk-device",
            "virtio-blk-device",
            "virtio-blk-device",
            "chardev",
        ];
        assert_eq!(kinds, wanted, "{purpose:?}");
        // No default devices are added.
        for switch in ["-nodefaults", "-no-user-config"] {
            assert!(arguments.iter().any(|word| word == switch), "{switch}");
        }
    }
}

#[test]
fn no_guest_reaches_a_network_through_the_vmm() {
    for (kvm, purpose) in EVERY {
        let arguments = command(kvm, purpose).arguments;
        assert_eq!(values(&arguments, "-netdev"), ["tap,id=net,fd=6"], "{purpose:?}");
        assert!(!arguments.iter().any(|word| word == "-nic" || word == "-net" || word.starts_with("user")));
    }
}

#[test]
fn the_sandbox_is_on_and_forks_can_be_loaded() {
    for (kvm, purpose) in EVERY {
        let arguments = command(kvm, purpose).arguments;
        assert_eq!(values(&arguments, "-global"), ["migration.send-configuration=off"]);
        let sandbox = values(&arguments, "-sandbox");
        assert_eq!(sandbox.len(), 1);
        for denied in ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"] {
            assert!(
                sandbox[0].starts_with("on,") && sandbox[0].contains(&format!("{denied}=deny")),
                "{sandbox:?}"
            );
        }
    }
}

#[test]
fn no_path_of_the_machine_but_descriptors_is_named() {
    for (kvm, purpose) in EVERY {
        let command = command(kvm, purpose);
        for word in command.arguments.iter().filter(|word| word.contains('/')) {
            assert!(word.contains("/proc/self/fd/") || word.contains("/dev/fdset/"), "{word}");
        }
        assert_eq!(command.descriptors.len(), if purpose == Purpose::Restore { 10 } else { 9 });
        assert_eq!(command.needs_kvm, kvm);
    }
}

#[test]
fn the_environment_has_the_preloaded_library_alone_and_only_where_memory_is_private() {
    let environment = |purpose| command(false, purpose).environment;
    assert_eq!(environment(Purpose::Bake), []);
    let wanted = [("LD_PRELOAD", "/proc/self/fd/12"), ("SKEP_RAM_FD", "7")];
    assert_eq!(
        environment(Purpose::Restore),
        wanted.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn each_descriptor_has_the_number_that_the_arguments_name() {
    use std::os::fd::AsRawFd;
    let files: Vec<OwnedFd> = (0..9).map(|_| File::open("/dev/null").unwrap().into()).collect();
    let numbers: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let [monitor, agent, console, tap, ram, kernel, initrd, root, layer] =
        <[OwnedFd; 9]>::try_from(files).unwrap();
    let numbered = NumberedDescriptors::new(Descriptors {
        monitor,
        agent,
        console,
        tap,
        ram,
        kernel,
        initrd,
        root,
        layer,
        delta: None,
    });
    let named = [
        numbered.monitor,
        numbered.agent,
        numbered.console,
        numbered.tap,
        numbered.ram,
        numbered.kernel,
        numbered.initrd,
        numbered.root,
        numbered.layer,
    ];
    for (number, original) in named.into_iter().zip(numbers) {
        let place = usize::try_from(number - FIRST_FD).unwrap();
        assert_eq!(numbered.descriptors[place].as_raw_fd(), original);
    }
}
