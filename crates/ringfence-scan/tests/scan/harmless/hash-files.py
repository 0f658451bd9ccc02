import hashlib
import sys

def digest(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(65536):
            h.update(chunk)
    return h.hexdigest()

for path in sys.argv[1:]:
    print(digest(path), path)
