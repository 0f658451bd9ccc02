import os, subprocess

os.environ["LD_PRELOAD"] = "/tmp/libhook.so"
subprocess.run(["ls"])
