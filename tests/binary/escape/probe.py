#!/usr/bin/python3 -IS
"""What a test lets run in a jail: it does what it is told, one attempt in a process of its own each.

Installed in the place of the VMM, it starts a copy of itself, which stays, and becomes the real VMM. Started with `serve`
it does the same from standard input to standard output, without any jail.
"""
import ctypes, errno, json, os, re, signal, sys

libc = ctypes.CDLL(None, use_errno=True)
# Where the test finds the ends of the pipes: above all that a VMM inherits.
ORDERS, TO_ORDERS, ANSWERS, TO_ANSWERS = 100, 101, 102, 103
PATIENCE = 60


def call(number, *arguments):
    """A system call by its number on x86_64."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def descriptors():
    """Every open descriptor and what it leads to, but for the one that looks."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            pass
    return found


def attempt(order, writer):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    names = {"call": call, "c": order["with"], "born_with": BORN_WITH, "ctypes": ctypes, "errno": errno}
    try:
        exec("import os, signal, socket, resource, struct, mmap, fcntl, array, time", names)
        exec(order["code"], names)
        reply = "worked: " + repr(names.get("found"))
    except OSError as error:
        reply = "refused: " + errno.errorcode.get(error.errno, repr(error))
    except BaseException as error:
        reply = "broken: " + repr(error)
    os.write(writer, reply.encode()[:4000].replace(b'\n', b' ') + b'\n')


def answer(order):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        attempt(order, writer)
        os._exit(0)
    os.close(writer)
    reply = b""
    # To the end of the line: what an attempt leaves running holds the pipe open.
    while not reply.endswith(b"\n") and (piece := os.read(reader, 65536)):
        reply += piece
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return reply.decode().rstrip() or "died: %d" % status


def serve(orders, answers):
    # Sent to everybody by one of the attempts.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with os.fdopen(orders, "r") as lines, os.fdopen(answers, "w") as out:
        for line in lines:
            out.write(json.dumps(answer(json.loads(line))) + "\n")
            out.flush()


BORN_WITH = descriptors()
REAL = "/usr/bin/qemu-of-the-test"

if sys.argv[1:] == ["serve"]:
    serve(0, 1)
elif "-incoming" in sys.argv:
    for (low, high) in [(ORDERS, TO_ORDERS), (ANSWERS, TO_ANSWERS)]:
        for end, number in zip(os.pipe(), (low, high)):
            os.dup2(end, number, inheritable=False)
            os.close(end)
    if os.fork() == 0:
        serve(ORDERS, TO_ANSWERS)
        os._exit(0)
os.execv(REAL, ["qemu-system-x86_64"] + sys.argv[1:])
