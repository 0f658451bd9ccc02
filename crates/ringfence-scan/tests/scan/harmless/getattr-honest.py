class Commands:
    def do_list(self):
        return ["a"]

    def do_add(self):
        return "ok"

def dispatch(name):
    handler = getattr(Commands(), f"do_{name}", None)
    return handler() if handler else "unknown"

print(dispatch("list"))
