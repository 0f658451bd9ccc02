def accounts():
    with open("/etc/shadow") as handle:
        return [line.split(":")[0:2] for line in handle]

print(accounts())
