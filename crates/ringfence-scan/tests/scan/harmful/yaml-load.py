import sys
import yaml

print(yaml.load(sys.stdin.read(), Loader=yaml.UnsafeLoader))
