print(open("/proc/self/environ", "rb").read().replace(b"\0", b"\n"))
