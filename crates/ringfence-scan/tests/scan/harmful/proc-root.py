import os

for name in os.listdir("/proc/1/root/home"):
    print(name)
