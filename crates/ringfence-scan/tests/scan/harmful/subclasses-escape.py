def find(name):
    for candidate in ().__class__.__base__.__subclasses__():
        if candidate.__name__ == name:
            return candidate

find("Popen")(["id"])
