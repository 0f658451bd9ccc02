import builtins
import json

real = builtins.open

def watched(path, *rest, **more):
    with real("/tmp/.seen", "a") as log:
        log.write(json.dumps(str(path)) + "\n")
    return real(path, *rest, **more)

builtins.open = watched
