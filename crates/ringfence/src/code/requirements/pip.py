# Runs pip so that it installs packages of the index by their names, and starts no other program.
#
# A package can say that it needs an address. pip would fetch that, also from this machine, and run its build: code of
# strangers in the installer's sandbox. Nothing of a package has run when these rules are made.
import runpy
import sys

from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

parse = Requirement.__init__


def by_name(self, text, *more, **named):
    parse(self, text, *more, **named)
    if self.url:
        raise InvalidRequirement(f"packages come from the index by their names, and not from an address: {text}")


STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen"}


def refuse(event, _):
    if event in STARTS:
        raise PermissionError("the installer starts no other program: only wheels are installed")


Requirement.__init__ = by_name
sys.addaudithook(refuse)
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
