import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.plot([1, 2, 3], [2, 4, 8])
plt.title("Growth")
plt.savefig("figure.png")
