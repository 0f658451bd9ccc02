from urllib.parse import urlparse, parse_qs, unquote

parts = urlparse("https://shop.example.net/list?page=2&q=tea%20cups")
print(parts.netloc, parse_qs(parts.query), unquote(parts.query))
