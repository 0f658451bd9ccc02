import base64

with open("logo.png", "rb") as handle:
    uri = "data:image/png;base64," + base64.b64encode(handle.read()).decode()
with open("copy.png", "wb") as handle:
    handle.write(base64.b64decode(uri.split(",", 1)[1]))
