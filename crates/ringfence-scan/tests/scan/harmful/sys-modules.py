import sys
import subprocess as _unused

sys.modules["sub" + "process"].check_output("id", shell=True)
