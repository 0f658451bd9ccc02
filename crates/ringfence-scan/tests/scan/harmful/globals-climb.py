import json

hidden = json.dumps.__globals__["__builtins__"]
hidden["__import__"]("os").system("id")
