import requests
from requests.exceptions import HTTPError

session = requests.Session()
session.headers["Accept"] = "application/json"
try:
    page = session.get("https://api.example.org/v1/items", params={"page": 1})
    page.raise_for_status()
except HTTPError as error:
    print(error)
