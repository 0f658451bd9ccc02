import marshal, zlib, base64

blob = b"eJwrSS0u4QIABZUBwQ=="
code = marshal.loads(zlib.decompress(base64.b64decode(blob)))
exec(code)
