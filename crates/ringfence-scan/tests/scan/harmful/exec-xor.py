KEY = 23
payload = bytes([126, 122, 103, 120, 101, 99])

def reveal(data):
    return "".join(chr(b ^ KEY) for b in data)

eval(compile(reveal(payload), "<plugin>", "exec"))
