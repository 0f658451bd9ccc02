parts = ["o", "s"]
module = __import__("".join(parts))
getattr(module, "po" + "pen")("id").read()
