"""Counts words in the background."""
import functools
import operator
import threading

lower = operator.methodcaller("lower")
binary = functools.partial(int, base=2)
worker = threading.Thread(target=print, args=(lower("A"), binary("101")))
worker.start()
worker.join()
