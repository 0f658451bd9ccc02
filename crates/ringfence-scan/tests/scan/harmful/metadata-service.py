import requests

role = requests.get("http://169.254.169.254/latest/meta-data/iam/security-credentials/").text
print(requests.get("http://169.254.169.254/latest/meta-data/iam/security-credentials/" + role).json())
