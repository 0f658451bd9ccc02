import re

EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")

def mask(text):
    return EMAIL.sub("<email>", text)
