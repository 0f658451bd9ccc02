import functools
import time

def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            print(f"{function.__name__}: {time.perf_counter() - start:.3f}s")
    return inner

@timed
def work(n):
    return sum(range(n))

work(1000)
