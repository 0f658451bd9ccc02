def rotate(text, by):
    out = []
    for c in text:
        if c.isalpha():
            base = ord("a") if c.islower() else ord("A")
            out.append(chr((ord(c) - base + by) % 26 + base))
        else:
            out.append(c)
    return "".join(out)

print(rotate("Hello", 3))
