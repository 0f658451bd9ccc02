# In the box: runs code that came over descriptor 0, a socket, and sends back what came of it. Started by `python3 -I -c`.
# It is compiled in many boxes, so it is short: what few runs need is in python_more.py, and what makes an interpreter stay in
# python_stay.py, which come with the request. Nothing is imported but what the interpreter has in it already.
import marshal, posix, sys

FRAME = 4 << 20
sender = channel = posix.dup(0)
null = posix.open("/dev/null", posix.O_RDONLY)
posix.dup2(null, 0)
posix.close(null)
# Of one that stays: before its code, around it, and before its result.
hooks = None


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


def more(request):
    names = {"encode": encode, "send": send, "FRAME": FRAME}
    exec(compile(request["more"], "<ringfence>", "exec"), names)
    return names


def plainly(code, name, names):
    """Runs code that ends in an expression on a line of its own: its value in a list. None otherwise, and nothing was run.

    Python makes syntax trees ready when `compile` is used first, which takes a sixth of its start. This goes without, and gives
    the code its name when it is entered."""
    import _imp, _warnings
    code = code.rstrip(" \t\n")
    at, before, entered = code.rfind("\n") + 1, sys.gettrace(), []
    last, filters = code[at:], _warnings.filters
    fix, changed = getattr(_imp, "_fix_co_filename", None), getattr(_warnings, "_filters_mutated", None)
    # What brackets around it, or a function, would make an expression.
    odd = any(word in last for word in (";", ":=", "yield", "\"\"\"", "'''")) or ",*" in "".join(last.split())
    if odd or last[:1] in " \t#*" or last.endswith("\\") or not fix or not changed or "\r" in code or "\f" in code or "__future__" in code:
        return None
    # Whatever is warned of has to name the code and its line: that takes a tree.
    strict = [("error", None, Warning, None, 0)]
    filters.insert(0, strict[0])
    changed()

    def relent():
        # Once: the code may have one that is equal.
        if strict:
            filters[:] = [filter for filter in filters if filter is not strict[0]]
            strict.clear()
            changed()

    def enter(frame, event, argument):
        if frame.f_globals is names and frame.f_code.co_filename == "<string>":
            relent()
            entered.append(sys.settrace(before))
            fix(frame.f_code, name)
            return before and before(frame, event, argument)

    try:
        # In a function, which a single line does not leave: nothing of it is run.
        exec("def check():\n (%s\n ,)\n [%s\n ,]" % (last, last), {})
        sys.settrace(enter)
        exec(code[:at], names)
        before = sys.gettrace()
        sys.settrace(enter)
        return [eval("\n" * code.count("\n") + last, names)]
    except BaseException as error:
        relent()
        if sys.gettrace() is enter:
            sys.settrace(before)
        if entered or not isinstance(error, SyntaxError):
            raise


def evaluate(code, name, names):
    """Runs code; the value of its last expression, or of `result`."""
    value = plainly and plainly(code, name, names)
    if value:
        return names.get("result") if value[0] is None else value[0]
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
    name, inputs, modules = request["name"], request["inputs"], sys.modules
    if type(inputs) is dict:
        names.update((key, inputs[key]) for key in inputs if key.isidentifier() and key[:2] != "__")
    names["inputs"] = inputs
    if hooks:
        hooks[0](request)
    # Before the start: that they cannot be there is no failure of the code.
    if request["files"] and not more(request)["unpack"](request["files"]):
        return
    send(b"s", b"")
    value = failure = None
    try:
        if hooks:
            hooks[1](True)
        value = evaluate(request["code"], name, names)
        if "threading" in modules or "atexit" in modules:
            more(request)["finish"](request["keep"])
    except SystemExit as error:
        failure = None if error.code in (None, 0) else error
    except BaseException as error:
        failure = error
    if hooks:
        hooks[1](False)
    text = encode(value)
    if failure is None and text is not None and len(text) < FRAME // 4 and type(value).__module__ == "builtins":
        body = '{"status":"ok","value":%s}' % text
    else:
        body = more(request)["describe"](value, text, failure, name, request["code"])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if "matplotlib.pyplot" in modules or request["out"]:
        more(request)["pack"](request["out"])
    if hooks:
        hooks[2](request)
    send(b"r", body.encode("utf-8", "replace"))


def ready():
    """A module of its own for the code, which takes itself for the program."""
    module = type(sys)("__main__")
    module.__builtins__ = __builtins__
    module.__file__ = None
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    # Without `site` they are missing.
    for name in ("exit", "quit"):
        __builtins__.__dict__.setdefault(name, sys.exit)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    return module.__dict__


def begin(request, names):
    """What is so for the first code, and stays."""
    names["__file__"], sys.argv = request["name"], [request["name"]]
    if request["required"]:
        # Before packages of the host, behind what Python has of its own.
        at = [place.endswith("-packages") for place in sys.path] + [True]
        sys.path.insert(at.index(True), request["required"])
    execute(request, names)


first = receive()
if first is not None:
    if "stay" in first:
        exec(compile(first["stay"], "<ringfence>", "exec"))
    else:
        begin(first, ready())
posix._exit(0)
