import ast

def read(text):
    return ast.literal_eval(text)

print(read("{'a': [1, 2]}"))
