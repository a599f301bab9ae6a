//! The attempts, in Python, where a system call is one line. An attempt that raises `OSError` was refused; one that
//! completes has worked.
//!
//! In the jail, `c` describes the targets outside and the descriptors that a VMM starts with. The control gets its own
//! canaries and descriptors and must complete: otherwise the attempt proves nothing.

/// Where the same attempt succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// As root on this machine.
    Machine,
    /// As root in new namespaces, for what would change this machine.
    Namespaces,
    /// As root where the kernel has it; it may have been built without.
    IfBuiltIn,
}

/// What a hostile VMM tries.
pub(super) struct Attempt {
    /// In plain words: "a VMM cannot ...".
    pub(super) name: &'static str,
    pub(super) control: Control,
    pub(super) code: &'static str,
}

const fn machine(name: &'static str, code: &'static str) -> Attempt {
    Attempt { name, control: Control::Machine, code }
}

const fn namespaces(name: &'static str, code: &'static str) -> Attempt {
    Attempt { name, control: Control::Namespaces, code }
}

const fn built_in(name: &'static str, code: &'static str) -> Attempt {
    Attempt { name, control: Control::IfBuiltIn, code }
}

pub(super) const ATTEMPTS: &[Attempt] = &[
    // Files of the machine.
    machine("read a file of the machine", "assert open(c['file']).read() == c['text']"),
    machine("overwrite a file of the machine", "open(c['file'], 'w').write('mine')"),
    machine("remove a file of the machine", "os.unlink(c['file'])"),
    machine("read the machine's passwords", "open('/etc/shadow').read()"),
    machine("list the data directory", "os.listdir(c['data_dir'])"),
    machine("read the admin key", "open(c['key']).read()"),
    machine("list the folder of the disk layers", "os.listdir(c['layers'])"),
    machine("find its way by a parent of a folder", "open('/usr/../../../..' + c['file']).read()"),
    machine("leave by the root of another process", "os.listdir('/proc/%d/root/etc' % c['pid'])"),
    machine("read the control groups", "os.listdir('/sys/fs/cgroup')"),
    machine("read the kernel's settings", "open('/proc/sys/kernel/core_pattern').read()"),
    machine("read the kernel's symbols", "open('/proc/kallsyms').read(64)"),
    machine("read the kernel's log", "call(103, 10, 0, 0)"),
    machine(
        "name a file by its handle",
        "call(303, -100, b'/usr', struct.pack('Ii', 128, 0) + bytes(128), ctypes.byref(ctypes.c_int()), 0)",
    ),
    machine("watch whole file systems", "call(300, 0, 0)"),
    machine(
        "write anywhere below its root",
        r"
for folder in c.get('folders', ['/', '/usr', '/usr/bin', '/usr/local', '/bin', '/dev', '/proc', '/tmp', '/run', '/var']):
    try:
        open(folder + '/written', 'w')
        break
    except OSError as error:
        last = error
else:
    raise last
",
    ),
    // Siblings.
    machine("see a sibling's process", "open('/proc/%d/status' % c['sibling']).read()"),
    machine("look into a sibling's descriptors", "os.listdir('/proc/%d/fd' % c['sibling'])"),
    machine("find a sibling's monitor", "os.stat(c['sibling_socket'])"),
    machine("read a sibling's memory", "open('/proc/%d/mem' % c['sibling'], 'rb')"),
    // Processes.
    machine("see a process of the machine", "open('/proc/%d/cmdline' % c['pid']).read()"),
    machine("kill a process of the machine", "os.kill(c['pid'], signal.SIGUSR1)"),
    machine("signal the keeper", "os.kill(c['keeper'], 0)"),
    machine("signal the server", "os.kill(c['server'], 0)"),
    machine("take hold of the keeper", "call(434, c['keeper'], 0)"),
    machine("trace a process of the machine", "call(101, 0x4206, c['pid'], 0, 0)"),
    machine(
        "trace even a process of its own",
        "child = os.fork() or time.sleep(60)\ntry: call(101, 0x4206, child, 0, 0)\nfinally: os.kill(child, 9)",
    ),
    machine(
        "read the memory of another process",
        r"
word = ctypes.create_string_buffer(b'secret')
piece = struct.pack('QQ', ctypes.addressof(word), 6)
call(310, os.getpid(), piece, 1, piece, 1, 0)
",
    ),
    machine("take a descriptor of another process", "call(438, call(434, os.getpid(), 0), 0, 0)"),
    machine("compare the kernel's objects of two processes", "call(312, os.getpid(), os.getpid(), 0, 0, 0)"),
    // The network.
    machine("connect to a socket file of the machine", "socket.socket(socket.AF_UNIX).connect(c['socket'])"),
    machine(
        "connect to a socket of the machine that has no file",
        "socket.socket(socket.AF_UNIX).connect('\\0' + c['abstract'])",
    ),
    machine("connect to the machine's loopback", "socket.create_connection(('127.0.0.1', c['port']))"),
    namespaces("make a raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    namespaces("make a packet socket", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300)"),
    namespaces("make a netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    namespaces("make a datagram socket", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"),
    built_in("make a socket to the hypervisor", "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)"),
    built_in("make a socket of the kernel's ciphers", "socket.socket(38, socket.SOCK_SEQPACKET)"),
    namespaces("make its tap outlive it", "fcntl.ioctl(c['tap'], 0x400454cb, 1)"),
    namespaces("give its tap to somebody", "fcntl.ioctl(c['tap'], 0x400454cc, 4711)"),
    namespaces(
        "give its tap a sibling's hardware address",
        "fcntl.ioctl(c['tap'], 0x8924, struct.pack('16sH6s8x', b'', 1, b'\\x02\\x53\\x0a\\x4d\\x00\\x03'))",
    ),
    namespaces("attach a filter to its tap", "fcntl.ioctl(c['tap'], 0x400454d1, bytes(8 + 248))"),
    // The template's memory, which siblings share.
    machine("write to the sealed memory", "os.pwrite(c['ram'], b'mine', 0)"),
    machine(
        "write to the sealed memory by its path",
        "os.write(os.open('/proc/self/fd/%d' % c['ram'], os.O_RDWR), b'mine')",
    ),
    machine("map the sealed memory shared and writable", "mmap.mmap(c['ram'], 4096)[0] = 1"),
    machine(
        "map the sealed memory shared, and make it writable later",
        r"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_long(4096), 1, 1, c['ram'], ctypes.c_long(0))
call(10, at, 4096, 3)
",
    ),
    machine("shorten the sealed memory", "os.ftruncate(c['ram'], 0)"),
    machine("lengthen the sealed memory", "os.ftruncate(c['ram'], os.fstat(c['ram']).st_size + 4096)"),
    machine("punch a hole into the sealed memory", "call(285, c['ram'], 3, 0, 4096)"),
    machine("add a seal to the memory", "fcntl.fcntl(c['ram'], 1033, 0x10)"),
    machine("change the mode of the sealed memory", "os.fchmod(c['ram'], 0o600)"),
    // The library, which is loaded into all VMMs.
    machine("write to the library", "os.pwrite(c['library'], b'mine', 0)"),
    machine(
        "write to the library by its path",
        "os.write(os.open('/proc/self/fd/%d' % c['library'], os.O_RDWR), b'mine')",
    ),
    machine("shorten the library", "os.ftruncate(c['library'], 0)"),
    machine("change the mode of the library", "os.fchmod(c['library'], 0o777)"),
    // The template's files.
    machine("write to the shared root file system", "os.pwrite(c['root'], b'mine', 0)"),
    machine(
        "open the shared root file system anew, to write",
        "os.open('/proc/self/fd/%d' % c['root'], os.O_RDWR)",
    ),
    machine("shorten the kernel", "os.ftruncate(c['kernel'], 0)"),
    machine("change the mode of the initial ramdisk", "os.fchmod(c['initrd'], 0o777)"),
    // Privilege.
    machine("become root", "os.setresuid(0, 0, 0)"),
    machine("become the group of root", "os.setresgid(0, 0, 0)"),
    machine("join a group", "os.setgroups([0])"),
    machine(
        "take a capability",
        "call(126, struct.pack('Ii', 0x20080522, 0), struct.pack('6I', 1 << 21, 1 << 21, 0, 0, 0, 0))",
    ),
    machine("become more urgent than others", "os.setpriority(os.PRIO_PROCESS, 0, -10)"),
    machine("keep memory from being swapped", "call(149, ctypes.create_string_buffer(4096), 4096)"),
    machine("turn off the randomness of its addresses", "call(135, 0x0040000)"),
    // Mounts and namespaces.
    namespaces("mount a file system", "call(165, b'none', b'/proc', b'tmpfs', 0, 0)"),
    namespaces("take a mount away", "call(166, b'/proc', 2)"),
    namespaces("open a tree of mounts", "call(428, -100, b'/', 1)"),
    namespaces("make a file system by its parts", "call(430, b'tmpfs', 0)"),
    namespaces(
        "change its root",
        "call(165, b'none', b'/mnt', b'tmpfs', 0, 0); os.mkdir('/mnt/old')\n\
         call(155, b'/mnt', b'/mnt/old')",
    ),
    namespaces("leave by chroot", "os.chroot('/usr')"),
    namespaces("make a user namespace", "call(272, 0x10000000)"),
    namespaces("make a mount namespace", "call(272, 0x00020000)"),
    namespaces("make a network namespace by clone", "call(56, 0x40000000 | 17, 0, 0, 0, 0) or os._exit(0)"),
    namespaces(
        "make a user namespace by clone3",
        "call(435, struct.pack('11Q', 0x10000000, 0, 0, 0, 17, *[0] * 6), 88) or os._exit(0)",
    ),
    namespaces("enter a namespace", "call(308, os.open('/proc/self/ns/uts', os.O_RDONLY), 0)"),
    namespaces("change the host name", "socket.sethostname('mine')"),
    // Devices.
    namespaces(
        "make a device node",
        "os.mknod(c['folders'][0] + '/disk' if 'folders' in c else '/dev/disk', 0o60600, os.makedev(254, 0))",
    ),
    machine("open a device that it was not given", "os.open('/dev/full', os.O_RDWR)"),
    machine("open the door to taps", "os.open('/dev/net/tun', os.O_RDWR)"),
    machine("open the machine's terminals", "os.open('/dev/ptmx', os.O_RDWR)"),
    built_in("open the machine's ports", "call(172, 3)"),
    // Kernel machinery.
    built_in("keep a key", "call(248, b'user', b'skep', b'secret', 6, -4)"),
    built_in("read a keyring", "call(250, 0, -3, 1)"),
    built_in(
        "ask for a key",
        "call(248, b'user', b'skep', b'secret', 6, -4); call(249, b'user', b'skep', 0, -4)",
    ),
    built_in("use io_uring", "call(425, 4, ctypes.create_string_buffer(120))"),
    built_in(
        "load a program into the kernel",
        "call(321, 0, struct.pack('IIIII', 2, 4, 4, 1, 0) + bytes(100), 120)",
    ),
    built_in("serve page faults", "call(323, 1)"),
    built_in(
        "count the machine's events",
        "call(298, struct.pack('IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0)",
    ),
    machine("ask for the machine's clock discipline", "call(159, bytes(208))"),
    // Limits.
    machine("open file after file", "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(400)]"),
    machine(
        "raise its limit of files",
        "call(302, 0, resource.RLIMIT_NOFILE, struct.pack('QQ', 1000, 1000), 0)",
    ),
    machine(
        "raise its limit of processes",
        "call(302, 0, resource.RLIMIT_NPROC, struct.pack('QQ', 1000, 1000), 0)",
    ),
    machine("ask for a core dump", "call(302, 0, resource.RLIMIT_CORE, struct.pack('QQ', 1000, 1000), 0)"),
    machine("make its disk layer larger", "os.ftruncate(c['layer'], 1 << 42)"),
    machine("write behind the end of its disk layer", "os.pwrite(c['layer'], b'x', 1 << 42)"),
    machine("reserve more disk than its layer", "call(285, c['layer'], 1, 1 << 42, 4096)"),
];
