import os
import tempfile
import shutil

folder = tempfile.mkdtemp()
try:
    with open(os.path.join(folder, "x.txt"), "w") as handle:
        handle.write("x")
finally:
    shutil.rmtree(folder)
