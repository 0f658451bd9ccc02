import sys

while True:
    print(eval(input("formula> ")))
