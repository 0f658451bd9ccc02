import base64

def unpack(text):
    data = base64.b64decode(text)
    return data.decode("utf-8")

def start(program):
    exec(program, {"__name__": "plugin"})

start(unpack("cHJpbnQoJ2hpJyk="))
