# In the box: runs code that came over descriptor 0, a socket, and sends back what came of it. Started by `python3 -I -c`.
# It is compiled at every start, so it is short: what few runs need is in python_more.py, which comes with the request.
# Nothing is imported but what the interpreter has in it already.
import marshal, posix, sys

FRAME = 4 << 20
channel = posix.dup(0)
null = posix.open("/dev/null", posix.O_RDONLY)
posix.dup2(null, 0)
posix.close(null)
# A context has an end of its own for results, and files in the place of its output.
sender, written = channel, []
if sys.argv[1:]:
    sender = int(sys.argv[1])
    written = [posix.open(path, posix.O_RDWR) for path in sys.argv[2:]]
    for path in sys.argv[2:]:
        posix.unlink(path)
    posix.set_inheritable(sender, False)
    try:
        # Nobody else in the box reaches into it by /proc.
        import ctypes
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    except Exception:
        pass


def receive():
    """The next request, or None when there will be none. The host makes it, so that marshal is safe here."""
    data = b""
    while b"\n" not in data:
        part = posix.read(channel, 65536)
        if not part:
            return None
        data += part
    head, _, rest = data.partition(b"\n")
    parts, missing = [rest], int(head) - len(rest)
    if not missing:
        return marshal.loads(rest)
    while missing > 0:
        part = posix.read(channel, min(missing, 1 << 20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return marshal.loads(b"".join(parts))


def send(kind, payload):
    data = memoryview(b"%s %d\n%s" % (kind, len(payload), payload))
    while data:
        data = data[posix.write(sender, data):]


def encode(value):
    """JSON, or None where it cannot be said in JSON."""
    if value is None or type(value) is bool:
        return "null" if value is None else repr(value).lower()
    if type(value) is int:
        # Larger ones would come out as something else.
        return repr(value) if -1 << 63 <= value < 1 << 64 else None
    try:
        from _json import encode_basestring, make_encoder
        return "".join(make_encoder({}, None, encode_basestring, None, ":", ",", False, False, False)(value, 0))
    except Exception:
        return None


def interruptible(on):
    import _signal
    _signal.signal(2, _signal.default_int_handler if on else _signal.SIG_IGN)


def more(request):
    names = {"encode": encode, "send": send, "FRAME": FRAME}
    # One that is warm has it already.
    exec(spare[0] if spare else compile(request["more"], "<ringfence>", "exec"), names)
    return names


spare = []


def evaluate(code, name, names):
    """Runs code; the value of its last expression, or of `result`."""
    tree = compile(code, name, "exec", 0x400, True)
    last = None
    if tree.body and type(tree.body[-1]).__name__ == "Expr":
        import _ast
        last = _ast.Expression(tree.body.pop().value)
    program = compile(tree, name, "exec", 0, True)
    if last is not None:
        # With the same `__future__`.
        last = compile(last, name, "eval", program.co_flags & 0x1FE0000, True)
    exec(program, names)
    value = None if last is None else eval(last, names)
    return names.get("result") if value is None else value


def execute(request, names):
    """One execution, from the request to its result."""
    name, inputs = request["name"], request["inputs"]
    if type(inputs) is dict:
        names.update((key, inputs[key]) for key in inputs if key.isidentifier() and key[:2] != "__")
    names["inputs"] = inputs
    if request["mark"]:
        posix.write(sender, b"\n%s\n" % request["mark"].encode())
    send(b"s", b"")
    value, failure, status = None, None, "ok"
    try:
        if request["files"]:
            more(request)["unpack"](request["files"])
        if request["keep"]:
            interruptible(True)
        value = evaluate(request["code"], name, names)
        if "matplotlib.pyplot" in sys.modules:
            # It closes them when the program ends.
            more(request)["figures"]()
        # What an interpreter does when its program has ended.
        if not request["keep"] and ("threading" in sys.modules or "atexit" in sys.modules):
            more(request)["finish"]()
    except SystemExit as error:
        if error.code not in (None, 0):
            status, failure = "error", error
    except KeyboardInterrupt as error:
        status, failure = "cancelled", error
    except BaseException as error:
        status, failure = "error", error
    if request["keep"]:
        interruptible(False)
    text = encode(value)
    if failure is None and text is not None and len(text) < FRAME and type(value).__module__ == "builtins":
        body = '{"status":"ok","value":%s}' % text
    else:
        body = more(request)["describe"](status, value, text, failure, name, request["code"])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if "matplotlib.pyplot" in sys.modules or request["out"]:
        names = more(request)
        names["figures"]()
        names["pack"](request["out"])
    if written:
        more(request)["output"](written)
    send(b"r", body.encode("utf-8", "replace"))


def ready():
    """A module of its own for the code, which takes itself for the program."""
    module = type(sys)("__main__")
    module.__builtins__ = __builtins__
    module.__file__ = None
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    return module.__dict__


kept = []


def serve():
    names, begun = None, False
    while True:
        try:
            request = receive()
            if request is None:
                return
            if "warm" in request:
                for module in request["warm"]:
                    __import__(module)
                # What the first code would otherwise wait for: syntax trees and JSON are made ready by their first use.
                encode([evaluate("0", "", {})])
                spare.append(compile(request["more"], "<ringfence>", "exec"))
                names = ready()
                send(b"w", b"")
                continue
            if "fork" in request:
                # Goes on in each fork, which has a channel of its own. Nothing of it is ever freed there: a page that is
                # written to is a page that is copied.
                kept.extend((compile(request["fork"], "<ringfence>", "exec"), {"channel": channel, "request": request}))
                exec(*kept)
                send(b"w", b"")
                continue
            names = names or ready()
            if not begun:
                begun, names["__file__"], sys.argv = True, request["name"], [request["name"]]
                if request["required"]:
                    # Before packages of the host, behind what Python has of its own.
                    at = [place.endswith("-packages") for place in sys.path] + [True]
                    sys.path.insert(at.index(True), request["required"])
            execute(request, names)
            if not request["keep"]:
                return
        except KeyboardInterrupt:
            # It came between two executions.
            pass


serve()
posix._exit(0)
