def load(plugin_source):
    table = __builtins__.__dict__ if hasattr(__builtins__, "__dict__") else __builtins__
    runner = table["ev" + "al"]
    return runner(plugin_source)
