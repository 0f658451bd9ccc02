import numpy as np
points = np.load("points.npy")
print(points.mean(axis=0))
