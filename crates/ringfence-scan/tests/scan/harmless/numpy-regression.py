import numpy as np

x = np.linspace(0, 10, 50)
y = 3 * x + np.random.default_rng(1).normal(size=50)
slope, offset = np.polyfit(x, y, 1)
print(f"{slope:.2f} {offset:.2f}")
