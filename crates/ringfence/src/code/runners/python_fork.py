# In a box of its own, which never sees anybody's code: makes this interpreter one that is forked, once for each piece of code.
# The forking itself is not Python's: it is a few instructions that came with the request, which carry out the list of system
# calls that came with it too (crates/ringfence-linux/src/forked.rs, forked/program.rs). They return in forks alone, behind their walls.
# From python.py it has `channel` and `request`.
import _signal, ctypes, gc, posix, sys

PROGRAM, STACK = 4, 1 << 16
# Holds the interpreter's lock: there is no other thread to take it.
library = ctypes.PyDLL(None, use_errno=True)
held = []


def words(*values):
    held.append((ctypes.c_long * len(values))(*values))
    return ctypes.addressof(held[-1])


def address(data):
    held.append(ctypes.create_string_buffer(data, max(len(data), 1)))
    return ctypes.addressof(held[-1])


def argument(value):
    if type(value) is tuple:
        return words(*map(argument, value))
    return value if type(value) is int else address(value)


def listed(calls):
    flat = []
    for stage, number, args, wants in calls:
        flat += [stage, number] + ([argument(value) for value in args] + [0] * 6)[:6] + [wants]
    return words(*flat, 0, -1)


def program():
    """The instructions: mapped, and as a file that is executed and that nobody can read; where they begin."""
    # Executable whatever the host prefers; before Linux 6.3 there was nothing to choose.
    for flags in (0x11, 1):
        try:
            file = posix.memfd_create("ringfence", flags)
            break
        except OSError:
            pass
    posix.write(file, request["program"])
    library.mmap.restype, library.mmap.argtypes = ctypes.c_long, [ctypes.c_long] * 6
    start = library.mmap(0, len(request["program"]), 5, 2, file, 0)
    place = posix.open("/proc/self/fd/%d" % file, posix.O_PATH)
    posix.fchmod(file, 0o100)
    posix.dup2(place, PROGRAM, False)
    # Nothing is executed that somebody could write to; and no descriptor of a module that was loaded is handed on.
    posix.closerange(PROGRAM + 1, 1 << 16)
    return start


def rseq():
    """Where the C library has the kernel note the processor."""
    try:
        names = ("__rseq_offset", "__rseq_size")
        offset, size = (kind.in_dll(library, name).value for kind, name in zip((ctypes.c_ssize_t, ctypes.c_uint), names))
        return offset, 32 if size else 0
    except ValueError:
        return 0, 0


def renew():
    """What modules drew when they were loaded would be the same in every fork."""
    # `random` sees the fork by itself. OpenSSL tells one by its number, which is 2 in every box.
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(posix.urandom(32), 32.0)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None
    if "uuid" in sys.modules:
        sys.modules["uuid"]._last_timestamp = None


def serve():
    start = program()
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_long)(start + request["serve"])
    # `struct msghdr`: a byte with descriptors comes, an error number or a descriptor goes.
    byte, number = words(0), words(0)
    room, rights = 64, words(20, 1 | 1 << 32, 0)
    asks = words(0, 0, words(byte, 1), 1, address(bytes(room)), room, 0)
    answers = words(0, 0, words(number, 4), 1, rights, 24, 0)
    stack = library.mmap(0, STACK, 3, 0x22, -1, 0) + STACK
    fork = ctypes.cast(library.fork, ctypes.c_void_p).value
    first, becomes, then, *own = [listed(request[name]) for name in ("first", "becomes", "then", "nursery", "new", "same")]
    order = words(
        channel, asks, room, request["flags"], stack, rights + 16, first, fork, becomes, then, answers, 24, number, *rseq(), 0, *own
    )
    # Forks have them all blocked until their walls stand. Whoever ends this one does it by force.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    mask = posix.umask(0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # A fork does not copy what its collector does not touch.
    gc.collect()
    gc.freeze()
    # A thread that holds a lock in the moment of a fork holds it there for ever.
    alone = len(posix.listdir("/proc/self/task")) == 1 and channel + 1 == PROGRAM and start > 0
    posix.write(channel, (0 if alone else 11).to_bytes(4, sys.byteorder))
    before, after = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    before.restype = after.restype = None
    before()
    # Nobody waits for forks here: their owner watches them. Python need not know, since it is not so in a fork.
    library.signal(_signal.SIGCHLD, ctypes.c_void_p(1))
    function(order)
    after()
    posix.umask(mask)
    renew()


serve()
