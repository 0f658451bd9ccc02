from importlib import metadata

for name in ("pip", "setuptools"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "missing")
