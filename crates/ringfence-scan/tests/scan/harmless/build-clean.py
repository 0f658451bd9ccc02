import shutil
from pathlib import Path

for name in ("build", "dist", ".pytest_cache"):
    shutil.rmtree(name, ignore_errors=True)
for cache in Path(".").rglob("__pycache__"):
    shutil.rmtree(cache)
