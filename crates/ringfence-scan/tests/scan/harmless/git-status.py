import subprocess

def changed():
    out = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True)
    return [line[3:] for line in out.stdout.splitlines()]

print(changed())
