# What few runs need: exceptions, rich results, files. Comes with each request, is compiled when it is needed.
# From python.py it has `encode`, `send` and `FRAME`.
import sys

TEXT = 64 << 10
RICH = (
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)


def short(text, limit=TEXT):
    return text if len(text) <= limit else text[:limit] + "…"


def plain(value):
    """How a value shows itself; also when that fails."""
    try:
        return short(repr(value))
    except BaseException as error:
        return "<%s whose repr failed: %s>" % (type(value).__name__, type(error).__name__)


def own(name):
    """A module of the interpreter's, whatever lies in the working directory."""
    kept = sys.path[:]
    sys.path[:] = [place for place in kept if place.startswith("/usr") or place.startswith(sys.base_prefix)]
    try:
        return __import__(name)
    finally:
        sys.path[:] = kept


def describe(value, text, failure, name, code):
    message = {"status": "ok"}
    if failure is not None:
        message["status"] = "cancelled" if isinstance(failure, KeyboardInterrupt) else "error"
        try:
            message["exception"] = exception(failure, name, code)
        except Exception:
            # What it is made of is the code's, and may fail in its own way.
            message["exception"] = {"type": "Exception", "message": "<an exception that cannot be shown>"}
        message["isolated"] = isolated()
    elif value is not None:
        if text is not None and len(text.encode("utf-8", "replace")) < FRAME:
            message["value"] = value
        else:
            message["text"] = plain(value)
            message["cut"] = len(message["text"]) > TEXT
        rich(value)
    return encode(message) or '{"status":"error","exception":{"type":"ValueError","message":"the result cannot be sent"}}'


def exception(error, name, code):
    kind = type(error)
    module = kind.__module__
    module = "" if type(module) is not str or module in ("builtins", "__main__") else module + "."
    described = {"type": module + kind.__qualname__, "message": text(error, 8192)}
    try:
        system(error, described)
    except Exception:
        pass
    lines = code.split("\n")
    trace = []
    if isinstance(error, SyntaxError) and error.filename == name:
        trace.append({"file": name, "line": error.lineno, "column": error.offset, "text": source(lines, error.lineno)})
        described["message"] = short(str(error.msg), 8192)
    import posix
    here = posix.getcwd() + "/"
    frame = error.__traceback__
    while frame is not None and len(trace) < 1000:
        file = frame.tb_frame.f_code.co_filename
        if file == name:
            entry = {"file": file, "line": frame.tb_lineno, "text": source(lines, frame.tb_lineno)}
        elif file.startswith(here):
            entry = {"file": file[len(here):], "line": frame.tb_lineno}
        else:
            entry = None
        if entry is not None:
            entry["function"] = frame.tb_frame.f_code.co_name
            trace.append(entry)
        frame = frame.tb_next
    # Endless recursion: the ends say it all.
    described["trace"] = trace if len(trace) <= 40 else trace[:20] + trace[-20:]
    last = described
    try:
        for cause in causes(error):
            last["cause"] = {"type": type(cause).__qualname__, "message": text(cause, 2048)}
            last = last["cause"]
            system(cause, last)
    except Exception:
        # What it is made of is the code's, and may fail in its own way.
        pass
    return described


def text(error, limit):
    try:
        return short(str(error), limit)
    except BaseException:
        return "<no message>"


def number(error):
    """The system's number of an error, where it was one of the system's."""
    code = getattr(error, "errno", None)
    return code if isinstance(error, OSError) and type(code) is int else None


def system(error, described):
    """Adds the name of the system's error, and the host that it was about."""
    code = number(error)
    if code is None:
        return
    import errno
    described["errno"] = errno.errorcode.get(code, str(code))
    if type(error).__name__ == "gaierror":
        _socket = own("_socket")
        names = [name for name in dir(_socket) if name[:4] == "EAI_" and getattr(_socket, name) == code]
        described["errno"] = names[0] if names else str(code)
    frame = error.__traceback__
    while frame is not None:
        local = frame.tb_frame
        # Libraries keep the host where they connect, and nowhere else.
        if local.f_globals.get("__name__") in ("socket", "urllib3.util.connection") and type(local.f_locals.get("host")) is str:
            described["host"] = short(local.f_locals["host"], 255)
        frame = frame.tb_next


def causes(error):
    """What is behind an error, the nearest first. What the system answered has nothing behind it: it was the answer to something else."""
    found, at = [error], 0
    while at < len(found) and len(found) < 9:
        now = found[at]
        at += 1
        if number(now) is not None:
            continue
        near = [now.__cause__, None if now.__suppress_context__ else now.__context__, getattr(now, "reason", None)]
        near += now.args if type(now.args) is tuple else ()
        near += getattr(now, "exceptions", ()) if type(getattr(now, "exceptions", ())) is tuple else ()
        for next in near:
            if isinstance(next, BaseException) and not any(next is known for known in found) and len(found) < 9:
                found.append(next)
    return found[1:]


def isolated():
    """Whether the box has no network at all: then no name is ever found."""
    try:
        with open("/proc/net/dev", "rb") as file:
            return [line.split(b":")[0].strip() for line in file if b":" in line] in ([], [b"lo"])
    except Exception:
        return False


def source(lines, number):
    return short(lines[number - 1].strip(), 200) if number and 0 < number <= len(lines) else ""


def rich(value):
    """Sends the ways in which a value can show itself."""
    shown = {}
    kind = type(value)
    try:
        bundle = getattr(value, "_repr_mimebundle_", None)
        if bundle is not None and not isinstance(value, type):
            made = bundle(include=None, exclude=None)
            made = made[0] if isinstance(made, tuple) else made
            shown.update((str(mime), data) for mime, data in (made or {}).items())
    except Exception:
        pass
    for method, mime in RICH:
        if mime not in shown and hasattr(kind, method):
            try:
                data = getattr(value, method)()
                data = data[0] if isinstance(data, tuple) else data
                if data is not None:
                    shown[mime] = data
            except Exception:
                pass
    if shown:
        shown.setdefault("text/plain", plain(value))
        display(shown)


def display(shown):
    for mime, data in list(shown.items()):
        if isinstance(data, (bytes, bytearray)):
            binascii = own("binascii")
            shown[mime] = binascii.b2a_base64(data, newline=False).decode()
        elif not isinstance(data, str):
            shown[mime] = encode(data) or plain(data)
    text = encode(shown)
    if text is not None and len(text) < FRAME:
        send(b"d", text.encode())


def figures():
    """Figures that are still open, as PNG."""
    plot = sys.modules.get("matplotlib.pyplot")
    if plot is None:
        return
    import io
    for number in plot.get_fignums()[:32]:
        try:
            data = io.BytesIO()
            figure = plot.figure(number)
            figure.savefig(data, format="png")
            display({"image/png": data.getvalue(), "text/plain": plain(figure)})
            plot.close(figure)
        except Exception as error:
            print("ringfence: cannot draw figure %s: %s" % (number, error), file=sys.stderr)


def output(files):
    """What was written since the last time, head and tail; the files are empty afterwards."""
    import posix
    half = 1 << 19
    for kind, file, streams in zip((b"o", b"e"), files, ((sys.__stdout__, sys.stdout), (sys.__stderr__, sys.stderr))):
        size = posix.fstat(file).st_size
        head = posix.pread(file, half, 0)
        tail = posix.pread(file, half, max(size - half, len(head)))
        posix.ftruncate(file, 0)
        # What did not fit any more waits in the interpreter: it belongs to this call, not to the next one.
        for stream in streams:
            try:
                stream.flush()
            except Exception:
                pass
        late = posix.fstat(file).st_size
        if late:
            tail = (tail + posix.pread(file, half, max(late - half, 0)))[-half:]
            posix.ftruncate(file, 0)
        if not size + late:
            continue
        dropped = size + late - len(head) - len(tail)
        between = b"\n[%d bytes dropped]\n" % dropped if dropped else b""
        send(kind, b"%d\n" % dropped + head + between + tail)


def unpack(files):
    """Puts files where the code finds them. Whether all are there; one that is not is told."""
    os = own("os")
    for name, data in files:
        try:
            folder = os.path.dirname(name)
            if folder:
                os.makedirs(folder, exist_ok=True)
            # In a session it lies in the project: nothing there is replaced, but the same once more is no matter.
            try:
                with open(name, "xb") as handle:
                    handle.write(data)
            except FileExistsError:
                if os.path.islink(name) or not os.path.isfile(name) or open(name, "rb").read(len(data) + 1) != data:
                    raise OSError(17, "a file of that name is there already, and nothing is replaced") from None
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or "out of memory"
            send(b"u", ("%s: %s" % (name, reason)).encode("utf-8", "replace"))
            return False
    return True


def pack(patterns):
    """Sends figures that are still open, and the files that were asked for. The host bounds them again."""
    figures()
    if not patterns:
        return
    import posix
    names = sorted({name for pattern in patterns for name in found("", pattern.split("/"), 0)})
    sent = left = 0
    for name in names:
        try:
            handle = posix.open(name, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC)
        except OSError:
            continue
        with open(handle, "rb") as file:
            if posix.fstat(handle).st_mode & 0o170000 != 0o100000:
                continue
            if sent == 256:
                left += 1
                continue
            data = file.read((32 << 20) + 1)
        sent += 1
        path = name.encode("utf-8", "surrogateescape")
        send(b"f", b"%d\n" % len(path) + path + data)
    if left:
        send(b"n", b"%d" % left)


def found(folder, parts, depth):
    """Files that a pattern names. As in a shell, what is hidden is asked for by its dot."""
    import posix
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from found(folder, rest, depth)
    try:
        entries = list(posix.scandir(folder or "."))
    except OSError:
        return
    for entry in entries:
        name = entry.name
        if name[0] == "." != part[0] or not fits(part, name):
            continue
        try:
            inner = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if inner and depth < 64 and (rest or part == "**"):
            yield from found(folder + name + "/", parts if part == "**" else rest, depth + 1)
        elif not inner and (not rest):
            yield folder + name


def fits(pattern, name):
    """`*` and `?` within a name. Only the last `*` is ever tried again."""
    p = n = 0
    star = None
    while n < len(name):
        if p < len(pattern) and pattern[p] == "*":
            p += 1
            star = p, n
        elif p < len(pattern) and pattern[p] in ("?", name[n]):
            p, n = p + 1, n + 1
        elif star:
            p, n = star[0], star[1] + 1
            star = p, n
        else:
            return False
    return not pattern[p:].strip("*")


def used(seconds):
    """What a call of a context took."""
    with open("/proc/self/status", "rb") as file:
        peak = [int(line.split()[1]) << 10 for line in file if line.startswith(b"VmHWM:")]
    send(b"t", b"%d %d" % (max(seconds, 0) * 1000, peak[0] if peak else 0))


def finish(stays):
    """What an interpreter does when its program has ended. Figures go first: matplotlib closes them then."""
    figures()
    if stays:
        return
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit
    atexit._run_exitfuncs()
