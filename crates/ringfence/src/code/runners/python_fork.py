# In a box of its own, which never sees anybody's code: forks this interpreter, once for each piece of code. A fork makes
# its own walls by the list of system calls that came with the request, and goes on as an interpreter that waits for code.
# From python.py it has `channel`. Its first free descriptor is 5: see crates/ringfence-linux/src/forked.rs.
import _signal, _socket, ctypes, gc, posix, sys

EVENTS = 4
FAILED, STOPPED, EXITED = 1, 4, 5
SIGCHLD, SIGNALS = _signal.SIGCHLD, _signal.valid_signals()
# Holds the interpreter's lock: there is no other thread to take it.
library = ctypes.PyDLL(None, use_errno=True)
syscall = library.syscall
syscall.restype = ctypes.c_long
syscall.argtypes = [ctypes.c_long] * 7
held = []


def address(data):
    held.append(ctypes.create_string_buffer(data, max(len(data), 1)))
    return ctypes.addressof(held[-1])


def argument(value):
    if type(value) is tuple:
        head, pointed = value
        return address(head + address(pointed).to_bytes(8, sys.byteorder))
    return value if type(value) is int else address(value)


def prepare(calls):
    pad = [0] * 6
    made = lambda number, args: ([number] + [argument(value) for value in args] + pad)[:7]
    return [(stage, made(number, args), wants) for stage, number, args, wants in calls]


def report(*words):
    posix.write(EVENTS, b"".join(word.to_bytes(4, sys.byteorder, signed=True) for word in words))


def carry_out(calls):
    for stage, words, wants in calls:
        if syscall(*words) != wants:
            report(FAILED, stage, ctypes.get_errno() or 71)
            posix._exit(125)


def tend(command):
    """Process 1: reaps, forwards signals, says how the command ended, and waits to be killed with all that is left."""
    posix.closerange(0, EVENTS)
    while True:
        signal = _signal.sigwait(SIGNALS)
        if signal != SIGCHLD:
            for target in (-command, command):
                try:
                    posix.kill(target, signal)
                    break
                except OSError:
                    pass
            continue
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG | posix.WUNTRACED)
            except OSError:
                break
            if pid == 0:
                break
            if pid == command:
                stopped = posix.WIFSTOPPED(status)
                report(STOPPED if stopped else EXITED, posix.WSTOPSIG(status) if stopped else status, 0)


def renew():
    """What modules drew when they were loaded would be the same in every fork."""
    # `random` and OpenSSL see the fork by themselves.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None
    if "uuid" in sys.modules:
        sys.modules["uuid"]._last_timestamp = None


def become(descriptors):
    """The fork: walls, then a child for the code. Returns in the child."""
    _signal.signal(SIGCHLD, _signal.SIG_DFL)
    events, requests, output, errors = descriptors[:4]
    if events != EVENTS:
        posix._exit(125)
    try:
        # First of all: whatever follows is spent within the limits.
        for door in descriptors[4:]:
            posix.write(door, b"0")
        control.detach()
        posix.dup2(requests, channel, False)
        posix.dup2(output, 1)
        posix.dup2(errors, 2)
        mask = posix.umask(0)
        carry_out(first)
        posix.umask(mask)
        command = posix.fork()
    except OSError as error:
        report(FAILED, request["stage"], error.errno)
        posix._exit(125)
    if command:
        tend(command)
    carry_out(then)
    posix.close(EVENTS)
    renew()


def receive():
    """The descriptors for the next fork."""
    flags = _socket.MSG_CMSG_CLOEXEC
    data, ancillary, _, _ = control.recvmsg(1, _socket.CMSG_SPACE(4 * 16), flags)
    if not data:
        posix._exit(0)
    if len(ancillary) != 1:
        posix._exit(1)
    numbers = ancillary[0][2]
    return [int.from_bytes(numbers[at:at + 4], sys.byteorder) for at in range(0, len(numbers), 4)]


def answer(errno, descriptors):
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(d.to_bytes(4, sys.byteorder) for d in descriptors))]
    control.sendmsg([errno.to_bytes(4, sys.byteorder)], rights if descriptors else [])


def serve(clone, flags):
    process = ctypes.c_int(-1)
    arguments = [flags, 0, ctypes.addressof(process), 0, 0, 0]
    # Forks have them all blocked until their walls stand. Whoever ends this one does it by force.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
    # Nobody waits for forks here: their owner watches them.
    _signal.signal(SIGCHLD, _signal.SIG_IGN)
    # No descriptor of a module that was loaded, and none that a fork could inherit.
    posix.closerange(channel + 1, 1 << 16)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # A fork does not copy what its collector does not touch.
    gc.collect()
    gc.freeze()
    # A thread that holds a lock in the moment of a fork holds it there for ever.
    answer(0 if len(posix.listdir("/proc/self/task")) == 1 and channel + 1 == EVENTS else 11, [])
    while True:
        descriptors = receive()
        pid = syscall(clone, *arguments)
        if pid == 0:
            become(descriptors)
            return
        for descriptor in descriptors:
            posix.close(descriptor)
        if pid < 0:
            answer(ctypes.get_errno(), [])
        else:
            answer(0, [process.value])
            posix.close(process.value)


control = _socket.socket(fileno=channel)
first, then = prepare(request["first"]), prepare(request["then"])
serve(request["clone"], request["flags"])
