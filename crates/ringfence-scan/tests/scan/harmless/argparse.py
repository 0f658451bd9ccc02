"""Counts words."""
import argparse
import sys
from collections import Counter

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=argparse.FileType("r"), default=sys.stdin)
    parser.add_argument("--top", type=int, default=10)
    options = parser.parse_args()
    counts = Counter(options.file.read().split())
    for word, count in counts.most_common(options.top):
        print(f"{count:6} {word}")
    return 0

if __name__ == "__main__":
    sys.exit(main())
