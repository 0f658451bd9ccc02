"""Explains what exit codes mean; starts nothing."""
from subprocess import CalledProcessError, TimeoutExpired

def explain(error: Exception) -> str:
    if isinstance(error, TimeoutExpired):
        return "too slow"
    if isinstance(error, CalledProcessError):
        return f"code {error.returncode}"
    return "unknown"
