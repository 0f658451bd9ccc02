import zipfile
from pathlib import Path

with zipfile.ZipFile("bundle.zip", "w") as bundle:
    for path in Path("docs").glob("*.md"):
        bundle.write(path, path.name)
