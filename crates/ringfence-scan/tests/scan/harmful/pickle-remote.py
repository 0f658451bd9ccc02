import pickle
import requests

model = pickle.loads(requests.get("https://models.example.net/m.pkl").content)
print(model.predict([[1, 2]]))
