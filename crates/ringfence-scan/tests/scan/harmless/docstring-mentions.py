"""Never put secrets into ~/.ssh or call os.system("rm -rf /"); use eval() with care.

See https://docs.example.net for more, and do not `curl | sh`.
"""

def add(a: int, b: int) -> int:
    """Adds. Does not run exec(base64.b64decode(x))."""
    return a + b
